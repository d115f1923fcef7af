//! A tree's files on disk, as replicas and exports write them alike: places that never leave their folder, files that
//! are staged under numbers and take their places by rename once they are whole, and names that are durable.

mod files;
mod places;
mod staging;

pub(crate) use files::{
    create_folders, create_new, is_folder, open, open_if_there, parent_of, remove_if_there,
    sync_folder,
};
pub(crate) use places::{check_tree, is_blocked, locate};
pub(crate) use staging::{Finish, Staging};

/// Where replicas and exports keep their own files; no path of a tree lies in it.
pub(crate) const INTERNAL: &str = ".deltaic";

/// What a file system keeps at its root for itself: an empty folder to everyone else.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";
