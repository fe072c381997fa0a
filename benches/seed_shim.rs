//! No chance in a server: preloaded into one, it lets it read zeros where it asks for random bytes. Not part of the
//! crate: src/instructions.rs compiles it.
//!
//! A server seeds its hash tables with random bytes. Which names share a place in the table of commands then differs
//! from process to process, and with it how many instructions a command takes.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::OnceLock;

type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The library after this one.
const NEXT: *mut c_void = -1_isize as *mut c_void;

fn open_zeros_for_random(path: *const c_char, mode: *const c_char) -> *mut c_void {
    static OPEN: OnceLock<Open> = OnceLock::new();
    unsafe {
        let open = OPEN.get_or_init(|| std::mem::transmute::<*mut c_void, Open>(dlsym(NEXT, c"fopen".as_ptr())));
        let random = CStr::from_ptr(path) == c"/dev/urandom";
        open(if random { c"/dev/zero".as_ptr() } else { path }, mode)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void {
    open_zeros_for_random(path, mode)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void {
    open_zeros_for_random(path, mode)
}

/// What Rust seeds its hash tables with.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    unsafe { buffer.write_bytes(0, length) };
    length as isize
}
