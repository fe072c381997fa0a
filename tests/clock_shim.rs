//! A wall clock that a test can step. A test preloads this library into a server, where the library adds an offset to
//! the wall clock. The library does not change the monotonic clock. This file is not part of the crate: the tests
//! compile it at run time (src/clock.rs).
//!
//! Valkey from 8.1 on loads modules with `RTLD_DEEPBIND`. With this flag, a module would call the C library's functions
//! instead of the functions of this library, so the module and the server would read different clocks. So this library
//! removes the flag.
//!
//! The offset in microseconds is the first eight bytes of the file that `LOCKWARD_CLOCK` names. The library maps the
//! file, so a step takes effect at once.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanos: i64,
}

#[repr(C)]
pub struct Timeval {
    seconds: i64,
    micros: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn mmap(
        at: *mut c_void,
        length: usize,
        access: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void;
}

#[cfg(target_arch = "x86_64")]
const SYS_CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const SYS_CLOCK_GETTIME: c_long = 113;

const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;
const RTLD_NEXT: *mut c_void = -1_isize as *mut c_void;
const RTLD_DEEPBIND: c_int = 8;
const MICROS: i64 = 1_000_000;

static OFFSET: AtomicPtr<AtomicI64> = AtomicPtr::new(ptr::null_mut());

/// The loader of the system calls this function before the server's own code runs.
#[used]
#[unsafe(link_section = ".init_array")]
static MAP_THE_OFFSET: extern "C" fn() = map_the_offset;

extern "C" fn map_the_offset() {
    // SAFETY: the name and the path from the environment are C strings; the file is mapped shared and read-only.
    unsafe {
        let path = getenv(c"LOCKWARD_CLOCK".as_ptr());
        if path.is_null() {
            return;
        }
        let file = open(path, 0);
        let mapped = mmap(ptr::null_mut(), 8, 1, 1, file, 0);
        if mapped as isize != -1 {
            OFFSET.store(mapped.cast(), Ordering::Relaxed);
        }
    }
}

fn offset() -> i64 {
    let offset = OFFSET.load(Ordering::Relaxed);
    // SAFETY: the pointer is null, or it points to the mapping, which stays until the process ends.
    unsafe { offset.as_ref() }.map_or(0, |offset| offset.load(Ordering::Relaxed))
}

fn wall_clock() -> Timespec {
    let mut time = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: the kernel fills the structure it is given.
    unsafe { syscall(SYS_CLOCK_GETTIME, CLOCK_REALTIME, &raw mut time) };
    let micros = time.nanos / 1_000 + offset();
    time.seconds += micros.div_euclid(MICROS);
    time.nanos = micros.rem_euclid(MICROS) * 1_000 + time.nanos % 1_000;
    time
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, into: *mut Timespec) -> c_int {
    if clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE {
        // SAFETY: the caller passes a structure to fill.
        unsafe { into.write(wall_clock()) };
        return 0;
    }
    // SAFETY: the caller passes valid arguments, as the C function requires.
    unsafe { syscall(SYS_CLOCK_GETTIME, clock, into) as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(into: *mut Timeval, _zone: *mut c_void) -> c_int {
    let time = wall_clock();
    if !into.is_null() {
        // SAFETY: the caller passes a structure to fill.
        unsafe { into.write(Timeval { seconds: time.seconds, micros: time.nanos / 1_000 }) };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(into: *mut i64) -> i64 {
    let seconds = wall_clock().seconds;
    if !into.is_null() {
        // SAFETY: the caller passes a number to fill.
        unsafe { into.write(seconds) };
    }
    seconds
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: `next` is null or the C library's `dlopen`, which has the type `Dlopen`; the caller passes valid
    // arguments.
    unsafe {
        let next = dlsym(RTLD_NEXT, c"dlopen".as_ptr());
        mem::transmute::<*mut c_void, Option<Dlopen>>(next)
            .map_or(ptr::null_mut(), |dlopen| dlopen(path, flags & !RTLD_DEEPBIND))
    }
}
