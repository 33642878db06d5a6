//! The body of an answer of the server.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// The body of an answer.
pub enum Feed {
    /// It is complete.
    Whole(Option<Bytes>),
    /// It is sent while it is produced.
    Live(mpsc::Receiver<io::Result<Bytes>>),
}

impl Feed {
    pub fn of(bytes: Vec<u8>) -> Feed {
        Feed::Whole(Some(bytes.into()))
    }
}

impl Body for Feed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let polled = match &mut *self {
            Feed::Whole(bytes) => Poll::Ready(bytes.take().map(Ok)),
            Feed::Live(pieces) => pieces.poll_recv(context),
        };
        polled.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
