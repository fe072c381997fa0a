//! A library for LD_PRELOAD that makes a server deterministic. This file is not part of the crate: src/instructions.rs
//! compiles it into the library.
//!
//! - Random bytes are zeros. A server seeds its hash tables with random bytes. The seeds decide which command names
//!   collide in the command table, and so how many instructions a command takes.
//! - While the byte in the file that `LOCKWARD_STILL` names is not 0, the clock is stopped. Each time the server reads the
//!   stopped clock, the clock advances by a microsecond. When the client adds 1 to the byte, the clock advances by ten
//!   milliseconds. While the clock is stopped, no timer wakes the server, so the server sleeps until a client sends
//!   something.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn ftruncate(file: c_int, length: i64) -> c_int;
    fn mmap(at: *mut c_void, length: usize, access: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
}

/// The original function of this name, which this library overrides.
macro_rules! next {
    ($name:literal as fn($($argument:ty),*) -> $result:ty) => {{
        static NEXT: OnceLock<unsafe extern "C" fn($($argument),*) -> $result> = OnceLock::new();
        *NEXT.get_or_init(|| transmute(dlsym(-1_isize as *mut c_void, $name.as_ptr())))
    }};
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void {
    unsafe {
        let open = next!(c"fopen" as fn(*const c_char, *const c_char) -> *mut c_void);
        let random = CStr::from_ptr(path) == c"/dev/urandom";
        open(if random { c"/dev/zero".as_ptr() } else { path }, mode)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void {
    unsafe { fopen(path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    unsafe { buffer.write_bytes(0, length) };
    length as isize
}

#[repr(C)]
struct Time {
    seconds: i64,
    rest: i64,
}

const REALTIME: c_int = 0;
const MONOTONIC: c_int = 1;

const OPEN_TO_WRITE_OR_MAKE: c_int = 0o102;
const FOR_US: c_int = 0o600;
const READ: c_int = 1;
const SHARED: c_int = 1;

/// The byte of the client: 0 while the clock runs.
fn still() -> i64 {
    static FILE: OnceLock<usize> = OnceLock::new();
    let file = *FILE.get_or_init(|| unsafe {
        let file = open(getenv(c"LOCKWARD_STILL".as_ptr()), OPEN_TO_WRITE_OR_MAKE, FOR_US);
        assert_eq!(ftruncate(file, 1), 0);
        mmap(ptr::null_mut(), 1, READ, SHARED, file, 0) as usize
    });
    let still = unsafe { &*(file as *const AtomicU8) };
    still.load(Ordering::Relaxed).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Time) -> c_int {
    /// The times of the two clocks while they are stopped, in nanoseconds; 0 before the first stop.
    static STANDS: [AtomicI64; 2] = [AtomicI64::new(0), AtomicI64::new(0)];
    unsafe {
        let status = next!(c"clock_gettime" as fn(c_int, *mut Time) -> c_int)(clock, time);
        if let (REALTIME | MONOTONIC, still @ 1..) = (clock, still()) {
            let stands = &STANDS[clock as usize];
            let now = (*time).seconds * 1_000_000_000 + (*time).rest;
            let _ = stands.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
            let then = stands.fetch_add(1_000, Ordering::Relaxed) + still * 10_000_000;
            *time = Time { seconds: then / 1_000_000_000, rest: then % 1_000_000_000 };
        }
        status
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(time: *mut Time, _zone: *mut c_void) -> c_int {
    unsafe {
        let status = clock_gettime(REALTIME, time);
        (*time).rest /= 1_000;
        status
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(file: c_int, events: *mut c_void, most: c_int, limit: c_int) -> c_int {
    unsafe {
        let wait = next!(c"epoll_wait" as fn(c_int, *mut c_void, c_int, c_int) -> c_int);
        wait(file, events, most, if limit > 0 && still() > 0 { -1 } else { limit })
    }
}
