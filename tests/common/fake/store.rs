//! containerd's own stores: leases and image records. All blobs exist already, so none is ever sent.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use smolet::proto::containerd::images as proto;

use super::state::State;

const NOT_FOUND: i32 = 5;
const ALREADY_EXISTS: i32 = 6;
const UNIMPLEMENTED: i32 = 12;

/// Content of the stores.
#[derive(Default)]
pub struct Store {
    /// The runtime has these services.
    pub is_there: bool,
    pub leases: BTreeSet<String>,
    /// By name.
    pub records: BTreeMap<String, proto::Image>,
}

type Result<T> = std::result::Result<T, (i32, String)>;

/// `Images/Create` for a method of these services.
pub fn named(service: &str, method: &str) -> Option<String> {
    let of = service.strip_prefix("containerd.services.")?;
    let (_, of) =
        of.split_once(".v1.").filter(|(package, _)| ["content", "leases", "images"].contains(package))?;
    Some(format!("{of}/{method}"))
}

/// The response to a method that is answered before its request ends: the blob exists.
pub fn answered_at_once(method: &str) -> Option<(i32, &'static str)> {
    (method == "Content/Write").then_some((ALREADY_EXISTS, "content already exists"))
}

/// The image's name, or the lease's.
pub fn target(method: &str, message: &[u8]) -> Option<String> {
    Some(match method {
        "Images/Create" => decode::<proto::CreateImageRequest>(message).ok()?.image?.name,
        "Images/Update" => decode::<proto::UpdateImageRequest>(message).ok()?.image?.name,
        "Leases/Create" => decode::<proto::CreateRequest>(message).ok()?.id,
        "Leases/Delete" => decode::<proto::DeleteRequest>(message).ok()?.id,
        _ => return None,
    })
}

pub fn handle(state: &mut State, method: &str, message: &[u8]) -> Result<Vec<u8>> {
    let store = &mut state.store;
    match method {
        "Content/Update" => {}
        "Leases/Create" => {
            if !store.leases.insert(decode::<proto::CreateRequest>(message)?.id) {
                return Err((ALREADY_EXISTS, "lease already exists".into()));
            }
        }
        "Leases/Delete" => {
            if !store.leases.remove(&decode::<proto::DeleteRequest>(message)?.id) {
                return Err((NOT_FOUND, "lease not found".into()));
            }
        }
        "Images/Create" => {
            let image = decode::<proto::CreateImageRequest>(message)?.image.unwrap_or_default();
            if store.records.contains_key(&image.name) {
                return Err((ALREADY_EXISTS, format!("image \"{}\" already exists", image.name)));
            }
            let name = image.name.clone();
            store.records.insert(name.clone(), image);
            state.add_image(&name);
        }
        "Images/Update" => {
            let request = decode::<proto::UpdateImageRequest>(message)?;
            let mut image = request.image.unwrap_or_default();
            let Some(record) = store.records.get_mut(&image.name) else {
                return Err((NOT_FOUND, format!("image \"{}\" not found", image.name)));
            };
            for path in request.update_mask.unwrap_or_default().paths {
                match path.strip_prefix("labels.") {
                    Some(label) => match image.labels.remove(label).filter(|value| !value.is_empty()) {
                        Some(value) => drop(record.labels.insert(label.to_owned(), value)),
                        None => drop(record.labels.remove(label)),
                    },
                    None => record.target = image.target.clone(),
                }
            }
        }
        "Images/List" => {
            let filters = decode::<proto::ListImagesRequest>(message)?.filters;
            let fits = |image: &&proto::Image| {
                let has = |filter: &String| {
                    image.labels.keys().any(|label| *filter == format!("labels.\"{label}\""))
                };
                filters.iter().all(has)
            };
            let images = store.records.values().filter(fits).cloned().collect();
            return Ok(proto::ListImagesResponse { images }.encode_to_vec());
        }
        _ => return Err((UNIMPLEMENTED, format!("unknown method {method}"))),
    }
    Ok(Vec::new())
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    M::decode(bytes).map_err(|error| (13, error.to_string()))
}
