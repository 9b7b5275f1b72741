//! Approved images in the store, as JSON.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _};

use super::error::{Failure, StoreError};
use super::{Store, audit, authority};
use crate::id::ImageName;
use crate::image::ApprovedImage;
use crate::migrate::Deed;
use crate::port::{AuditEvent, ImageRegistry, PortError, PortErrorKind};

#[async_trait]
impl ImageRegistry for Store {
    async fn put(&self, image: &ApprovedImage) -> Result<(), PortError> {
        let operation = format!("store image {}", image.name);
        let image = image.clone();
        self.write(operation, move |db| {
            authority::permit(db, Deed::Admit)?;
            Ok(put(db, &image)?)
        })
        .await
    }

    async fn find(&self, name: &ImageName) -> Result<Option<ApprovedImage>, PortError> {
        self.read(format!("look up image {name}"), |db| find(db, name))
    }

    async fn list(&self) -> Result<Vec<ApprovedImage>, PortError> {
        self.read("list images", list)
    }

    async fn revoke(&self, name: &ImageName, line: &AuditEvent) -> Result<(), PortError> {
        let operation = format!("revoke image {name}");
        let (name, line) = (name.clone(), line.clone());
        self.write(operation, move |db| revoke(db, &name, &line)).await
    }
}

/// Writes an image; also used for images of another anchor.
pub(super) fn put(db: &Connection, image: &ApprovedImage) -> Result<(), StoreError> {
    let body =
        serde_json::to_string(image).map_err(|error| StoreError::undecodable("image", error))?;
    db.prepare_cached("INSERT OR REPLACE INTO image VALUES (?1, ?2)")?
        .execute((image.name.as_str(), body))?;
    Ok(())
}

/// Looks up an image; also used for images of another anchor.
pub(super) fn find(db: &Connection, name: &ImageName) -> Result<Option<ApprovedImage>, StoreError> {
    db.prepare_cached("SELECT body FROM image WHERE name = ?1")?
        .query_row((name.as_str(),), |row| row.get(0))
        .optional()?
        .map(|body: String| decode(&body))
        .transpose()
}

fn list(db: &Connection) -> Result<Vec<ApprovedImage>, StoreError> {
    db.prepare_cached("SELECT body FROM image ORDER BY name")?
        .query_map((), |row| row.get::<_, String>(0))?
        .map(|body| decode(&body?))
        .collect()
}

/// At most `limit` images with names greater than `after`, in order.
pub(super) fn page(
    db: &Connection,
    after: Option<&ImageName>,
    limit: usize,
) -> Result<Vec<ApprovedImage>, StoreError> {
    // The empty text sorts before all names.
    let after = after.map_or("", ImageName::as_str);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    db.prepare_cached("SELECT body FROM image WHERE name > ?1 ORDER BY name LIMIT ?2")?
        .query_map((after, limit), |row| row.get::<_, String>(0))?
        .map(|body| decode(&body?))
        .collect()
}

/// The first revocation counts.
fn revoke(db: &Connection, name: &ImageName, line: &AuditEvent) -> Result<(), Failure> {
    authority::permit(db, Deed::ShutOut)?;
    let mut image = find(db, name)?.ok_or(Failure::Refused(PortErrorKind::NotFound))?;
    image.revoked_at.get_or_insert(line.at);
    put(db, &image)?;
    Ok(audit::append(db, line)?)
}

fn decode(body: &str) -> Result<ApprovedImage, StoreError> {
    serde_json::from_str(body).map_err(|error| StoreError::undecodable("image", error))
}
