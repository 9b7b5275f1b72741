//! tec-k8s
