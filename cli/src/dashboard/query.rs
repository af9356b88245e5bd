//! Query parameters of the event streams. Does no I/O.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use lockkeeper::ZnodePath;
use percent_encoding::percent_decode_str;

use super::board::{Cursor, MAX_ROWS};
use crate::live::Sort;

const ROWS: usize = 50;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct QueueCursor {
    pub(super) path: ZnodePath,
    pub(super) offset: usize,
    pub(super) limit: usize,
}

pub(super) fn locks(query: Option<&str>) -> Result<Cursor, String> {
    let mut cursor = Cursor {
        sort: Sort::Name,
        reverse: false,
        filter: String::new(),
        offset: 0,
        limit: ROWS,
    };
    for (name, value) in parameters(query)? {
        match &*name {
            "sort" => {
                cursor.sort = match &*value {
                    "name" => Sort::Name,
                    "held" => Sort::Held,
                    "overdue" => Sort::Overdue,
                    "waiters" => Sort::Waiters,
                    _ => return Err("sort is name, held, overdue or waiters".into()),
                }
            }
            "reverse" => cursor.reverse = parsed(&name, &value)?,
            "filter" => cursor.filter = value.to_lowercase(),
            "offset" => cursor.offset = parsed(&name, &value)?,
            "limit" => cursor.limit = limit(&value)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(cursor)
}

pub(super) fn queue(query: Option<&str>) -> Result<QueueCursor, String> {
    let (mut path, mut offset, mut rows) = (None, 0, ROWS);
    for (name, value) in parameters(query)? {
        match &*name {
            "path" => path = Some(ZnodePath::new(&*value).map_err(|error| error.to_string())?),
            "offset" => offset = parsed(&name, &value)?,
            "limit" => rows = limit(&value)?,
            _ => return Err(unknown(&name)),
        }
    }
    let path = path.filter(|path| !path.is_root());
    Ok(QueueCursor {
        path: path.ok_or("path is missing: the path of a lock's znode")?,
        offset,
        limit: rows,
    })
}

fn limit(text: &str) -> Result<usize, String> {
    let rows: usize = parsed("limit", text)?;
    Ok(rows.clamp(1, MAX_ROWS))
}

fn parsed<T: FromStr<Err: Display>>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("{name}: {error}"))
}

fn unknown(name: &str) -> String {
    format!(
        "there is no parameter \"{name}\"",
        name = name.escape_debug()
    )
}

fn parameters(query: Option<&str>) -> Result<Vec<(Cow<'_, str>, String)>, String> {
    let pairs = query.unwrap_or_default().split('&');
    let pairs = pairs.filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8();
        let value =
            value.map_err(|_| format!("\"{name}\" is not UTF-8", name = name.escape_debug()))?;
        Ok((Cow::Borrowed(name), value.into_owned()))
    });
    pairs.collect()
}
