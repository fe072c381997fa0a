//! A disk that knows what was synced. This library is preloaded into a server, and records the length of each file at
//! its last sync. Not part of the crate: src/disk.rs compiles it.
//!
//! Nothing is really synced. Each sync takes a millisecond, as on a disk. The server may be killed in that time.
//!
//! The file named by `LOCKWARD_DISK` is mapped. It holds pairs of eight bytes, a file's number and its length, and
//! zeros after them.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

#[derive(Default)]
struct Synced {
    file: AtomicU64,
    length: AtomicU64,
}

/// The number of entries for which src/disk.rs makes room.
const FILES: usize = 1_024;

/// Larger than what `fstat` fills anywhere. On all 64-bit machines, the number and the length of a file are at the same
/// place in it.
type Stat = [u64; 32];
const NUMBER: usize = 1;
const LENGTH: usize = 6;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn poll(files: *mut c_void, count: u64, millis: c_int) -> c_int;
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
const SYS_FSTAT: c_long = 5;
#[cfg(target_arch = "aarch64")]
const SYS_FSTAT: c_long = 80;

const READ_AND_WRITE: c_int = 2;

static TABLE: AtomicPtr<[Synced; FILES]> = AtomicPtr::new(ptr::null_mut());

/// The loader runs this before the server's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static MAP_THE_TABLE: extern "C" fn() = map_the_table;

extern "C" fn map_the_table() {
    // SAFETY: the name is a C string; the path is one from the environment; the file is mapped shared, to be read and
    // written.
    unsafe {
        let path = getenv(c"LOCKWARD_DISK".as_ptr());
        if path.is_null() {
            return;
        }
        let file = open(path, READ_AND_WRITE);
        let mapped = mmap(ptr::null_mut(), size_of::<[Synced; FILES]>(), 3, 1, file, 0);
        if mapped as isize != -1 {
            TABLE.store(mapped.cast(), Ordering::Relaxed);
        }
    }
}

fn sync(file: c_int) -> c_int {
    let mut stat: Stat = [0; 32];
    // Bytes that are written from here on may be lost. SAFETY: the kernel fills the structure it is given, which is
    // large enough.
    if unsafe { syscall(SYS_FSTAT, file, &raw mut stat) } != 0 {
        return -1;
    }
    // SAFETY: the list of files is empty, so the call only waits for the time.
    unsafe { poll(ptr::null_mut(), 0, 1) };
    // SAFETY: the mapping, once stored, stays until the process ends; zeros are a table of zeros.
    if let Some(table) = unsafe { TABLE.load(Ordering::Relaxed).as_ref() } {
        note(table, stat[NUMBER], stat[LENGTH]);
    }
    0
}

fn note(table: &[Synced; FILES], number: u64, length: u64) {
    for entry in table {
        let found = entry.file.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        if found.is_ok() || found == Err(number) {
            entry.length.fetch_max(length, Ordering::Relaxed);
            return;
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(file: c_int) -> c_int {
    sync(file)
}

#[unsafe(no_mangle)]
pub extern "C" fn fsync(file: c_int) -> c_int {
    sync(file)
}
