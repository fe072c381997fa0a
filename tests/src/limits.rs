//! The limit of open files of this process and of the servers that it starts.

use std::io;

/// Raises the limit of open files up to `wanted`, as far as the system allows, and returns the new limit.
pub fn raise_open_files(wanted: u64) -> u64 {
    let mut limit = open_files();
    if limit.rlim_cur >= wanted {
        return limit.rlim_cur;
    }
    // Only a privileged process may raise the hard limit. So if the first attempt fails, the second attempt does not
    // exceed the hard limit.
    let above = libc::rlimit { rlim_cur: wanted, rlim_max: wanted.max(limit.rlim_max) };
    limit.rlim_cur = wanted.min(limit.rlim_max);
    for limit in [above, limit] {
        // SAFETY: the call reads a structure that outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0 {
            break;
        }
    }
    open_files().rlim_cur
}

/// Gives the calling thread its own table of open files. Files that this thread opens later do not count for the limit
/// of the other threads, and the other threads cannot use these files.
pub fn own_files() {
    // SAFETY: the call takes no pointer and has no conditions.
    let status = unsafe { libc::unshare(libc::CLONE_FILES) };
    assert_eq!(status, 0, "a table of files: {}", io::Error::last_os_error());
}

fn open_files() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes a structure that outlives the call.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(status, 0, "the limit of open files: {}", io::Error::last_os_error());
    limit
}
