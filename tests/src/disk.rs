//! A disk for one server. The disk can lose all data that the server has not synced.

use crate::process::temporary_path;
use crate::random::Random;
use crate::server::{Server, Setup};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The size of the file that disk_shim.rs maps.
const ROOM: usize = 1_024 * 16;

/// A disk that records up to which length each file is synced.
///
/// A killed process loses nothing that it has written: the kernel still has the data. A power failure loses all data
/// that was not synced.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// A disk on which nothing is synced yet.
    #[track_caller]
    pub fn new() -> Self {
        let path = temporary_path("disk");
        fs::write(&path, [0; ROOM]).expect("a writable directory");
        Self { path }
    }

    /// Cuts a random part of the unsynced data off the end of the killed server's AOF files, as a power failure does.
    /// Returns the number of lost bytes.
    #[track_caller]
    pub fn lose_unsynced(&self, server: &Server, random: &mut Random) -> u64 {
        let table = fs::read(&self.path).expect("the table");
        let (mut lost, mut kept) = (0, Vec::with_capacity(ROOM));
        for path in appended_files(server) {
            let length = size(&path);
            let number = fs::metadata(&path).expect("a file").ino();
            let synced = table.chunks_exact(16).find(|pair| read(&pair[..8]) == number);
            let synced = synced.map_or(0, |pair| read(&pair[8..])).min(length);
            let left = synced + random.number() % (length - synced + 1);
            File::options().write(true).open(&path).and_then(|file| file.set_len(left)).expect("a cut");
            lost += length - left;
            // The data that is left counts as synced from now on.
            kept.extend_from_slice(&number.to_ne_bytes());
            kept.extend_from_slice(&left.to_ne_bytes());
        }
        kept.resize(ROOM, 0);
        fs::write(&self.path, kept).expect("the table");
        lost
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Setup {
    /// Lets `disk` record which part of each of the server's files is synced.
    #[track_caller]
    pub fn disk(self, disk: &Disk) -> Self {
        self.shim("disk_shim", "LOCKWARD_DISK", &disk.path)
    }
}

/// The files to which a server has appended commands since the last rewrite of its AOF, in order.
#[track_caller]
pub fn appended_files(server: &Server) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(server.dir().join("appendonlydir")) else { return Vec::new() };
    let mut files: Vec<_> = files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .collect();
    files.sort();
    files
}

#[track_caller]
fn size(path: &Path) -> u64 {
    fs::metadata(path).expect("a file").len()
}

fn read(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}
