//! The manifests of a shape in a temporary folder.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::shape::{Shape, called};
use crate::modes::ModeName;

/// Number of objects in a file: all in one would take the memory of the whole text.
const IN_FILE: usize = 1000;

/// A folder with the objects; removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn of(mode: ModeName, shape: Shape) -> Folder {
        let name = format!("tripod-bench-{mode}-{shape}-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).expect("a temporary folder");
        let mut objects = called().into_iter().chain(shape.objects());
        for number in 0.. {
            let items: Vec<Value> = objects.by_ref().take(IN_FILE).collect();
            if items.is_empty() {
                break;
            }
            let list = json!({"kind": "List", "apiVersion": "v1", "items": items});
            let file = folder.0.join(format!("{number:05}.json"));
            fs::write(file, list.to_string()).expect("room for the manifests in TMPDIR");
        }
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
