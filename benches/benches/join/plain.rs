//! The baseline: gRPC over mutual TLS, with certificates of a CA.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tec_benches::mutual;
use tec_benches::mutual::Ca;
use tec_core::ak::PublicKey;
use tec_core::port::{PortError, PortErrorKind};
use tec_node::lock::MarkerState;
use tec_node::rpc::generated::join::api_server::ApiServer;
use tec_node::rpc::{Caller, JoinService};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::transport::Channel;
use tower::ServiceExt as _;

/// A CA that signs both ends and all kubelets, with its files as the join service reads them.
pub(crate) fn authority(directory: &Path) -> anyhow::Result<Ca> {
    let ca = mutual::authority()?;
    fs::write(directory.join("ca.key"), ca.key().serialize_pem())?;
    fs::write(directory.join("ca.crt"), ca.pem())?;
    Ok(ca)
}

/// A client with a certificate of its own.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    certificate: CertificateDer<'static>,
    config: Arc<ClientConfig>,
}

impl Plain {
    pub(crate) fn new(ca: &Ca) -> anyhow::Result<Self> {
        let (mut config, certificate) = mutual::client(ca)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { certificate, config: Arc::new(config) })
    }

    pub(crate) fn certificate(&self) -> Vec<u8> {
        self.certificate.to_vec()
    }

    pub(crate) async fn dial(&self, address: &str) -> Result<Channel, PortError> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let to = address.to_owned();
        let connect = tower::service_fn(move |_: http::Uri| {
            let (connector, to) = (connector.clone(), to.clone());
            async move {
                let stream = TcpStream::connect(to).await?;
                let name = ServerName::try_from("localhost").map_err(std::io::Error::other)?;
                connector.connect(name, stream).await.map(TokioIo::new)
            }
        });
        let channel = tonic::transport::Endpoint::from_static("http://plain.invalid");
        channel
            .connect_with_connector(connect)
            .await
            .map_err(|error| PortError::new(PortErrorKind::Unavailable, "connect").because(error))
    }
}

/// A server that identifies its callers by their certificates.
#[derive(Clone)]
pub(crate) struct PlainServer {
    acceptor: TlsAcceptor,
    callers: Arc<HashMap<Vec<u8>, PublicKey>>,
}

impl PlainServer {
    pub(crate) fn new(ca: &Ca, callers: HashMap<Vec<u8>, PublicKey>) -> anyhow::Result<Self> {
        let mut config = mutual::server(ca)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { acceptor: Arc::new(config).into(), callers: Arc::new(callers) })
    }

    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        api: ApiServer<JoinService>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                Ok((stream, _)) = listener.accept() => {
                    let (server, api) = (self.clone(), api.clone());
                    connections.spawn(async move { server.connection(stream, api).await });
                }
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    async fn connection(
        &self,
        stream: TcpStream,
        api: ApiServer<JoinService>,
    ) -> anyhow::Result<()> {
        let stream = self.acceptor.accept(stream).await?;
        let peer = stream.get_ref().1.peer_certificates();
        let peer = peer.and_then(<[_]>::first).context("a certificate")?;
        let key = self.callers.get(peer.as_ref()).context("unknown caller")?;
        let caller = Caller::dangerous_assume(key.clone(), MarkerState::Unset);
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(caller.clone());
            api.clone().oneshot(request)
        });
        let builder = http2::Builder::new(TokioExecutor::new());
        builder.serve_connection(TokioIo::new(stream), service).await?;
        Ok(())
    }
}
