//! A disk that records the synced length of each file. A test preloads this library into a server, where the library
//! stores the length that each file had at its last sync. This file is not part of the crate: the tests compile it at
//! run time (src/disk.rs).
//!
//! The library does not really sync. Instead, the library waits for a millisecond, which is about as long as a sync
//! takes. So a server can be killed during a sync.
//!
//! The library maps the file that `LOCKWARD_DISK` names. For each synced file, the mapped file has a pair of 8-byte
//! numbers: the inode and the synced length. The rest is zeros.

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

/// A buffer at least as large as the kernel's `stat` structure. The inode and the length of a file are at the same
/// offsets of this structure on all 64-bit machines.
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

/// The loader of the system calls this function before the server's own code runs.
#[used]
#[unsafe(link_section = ".init_array")]
static MAP_THE_TABLE: extern "C" fn() = map_the_table;

extern "C" fn map_the_table() {
    // SAFETY: the name and the path from the environment are C strings; the file is mapped shared, for reading and
    // writing.
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
    // The length is read before the sync, so bytes that are written during the sync count as unsynced.
    // SAFETY: the kernel fills the structure, which is large enough.
    if unsafe { syscall(SYS_FSTAT, file, &raw mut stat) } != 0 {
        return -1;
    }
    // SAFETY: the list of files is empty, so the call only waits.
    unsafe { poll(ptr::null_mut(), 0, 1) };
    // SAFETY: the pointer is null, or it points to the mapping, which stays until the process ends; a file of zeros is
    // a valid table.
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
