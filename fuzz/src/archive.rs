//! An image archive → what of it goes to the runtime: within the archive, and no blob without a digest.

use std::os::unix::fs::FileExt;

use smolet::image::archive::{Data, Extent, Index, Platform, plan};

struct Bytes(Vec<u8>);

impl FileExt for Bytes {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, _: &[u8], _: u64) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

impl Bytes {
    /// With the right sum in whatever looks like a header: nobody guesses it.
    fn sealed(data: &[u8]) -> Self {
        let mut bytes = data.to_vec();
        for block in bytes.chunks_exact_mut(512).filter(|block| block[257..].starts_with(b"ustar")) {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        }
        Self(bytes)
    }

    fn read(&self, at: Extent) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(at.size).unwrap_or_default()];
        assert!(self.read_exact_at(&mut bytes, at.offset).is_ok(), "it lies within the archive");
        bytes
    }
}

pub fn run(data: &[u8]) {
    let archive = Bytes::sealed(data);
    let Ok(index) = Index::read(&archive, archive.0.len() as u64) else { return };
    let platform = Platform { architecture: "arm", variant: 7 };
    let Ok(plan) = plan(&index, &platform, &mut |at| Ok(archive.read(at))) else { return };
    assert!(!plan.images.is_empty());
    for blob in &plan.blobs {
        assert_eq!(blob.digest.len(), "sha256:".len() + 64);
        let bytes = match &blob.data {
            Data::InArchive(at) => archive.read(*at),
            Data::Made(bytes) => bytes.clone(),
        };
        assert_eq!(bytes.len() as u64, blob.size);
    }
    for image in &plan.images {
        assert!(plan.blobs.iter().any(|blob| blob.digest == image.target.digest));
    }
}
