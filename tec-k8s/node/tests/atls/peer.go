// A peer of attested TLS in another language: documents of the dummy variant, both roles, both ends
// attested; a server may also have a quote. Says `ping`, answers `pong`. A named client has its nonce as
// server name, which is refused. Usage: peer client <address> | peer named-client <address> | peer server
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"strings"
	"time"
)

const tokenPrefix = "atls:v1:nonce:"

var dummyOID = asn1.ObjectIdentifier{1, 3, 9900, 1, 1}

type document struct{ UserData, Nonce []byte }

func try[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func newNonce() []byte {
	nonce := make([]byte, 32)
	try(rand.Read(nonce))
	return nonce
}

// certificate is signed by its own key; with a nonce it has a document for it.
func certificate(name string, nonce []byte) *tls.Certificate {
	key := try(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(newNonce()[:15]),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-2 * time.Hour),
		NotAfter:     time.Now().Add(2 * time.Hour),
	}
	if nonce != nil {
		hash := sha256.Sum256(try(x509.MarshalPKIXPublicKey(&key.PublicKey)))
		value := try(json.Marshal(document{hash[:], nonce}))
		template.ExtraExtensions = []pkix.Extension{{Id: dummyOID, Value: value}}
	}
	der := try(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// judge takes a certificate that is signed by its own key and binds that key and our nonce.
func judge(nonce []byte) func([][]byte, [][]*x509.Certificate) error {
	return func(raw [][]byte, _ [][]*x509.Certificate) error {
		leaf, err := x509.ParseCertificate(raw[0])
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AddCert(leaf)
		usages := []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usages}); err != nil {
			return err
		}
		hash := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
		for _, extension := range leaf.Extensions {
			var found document
			if extension.Id.Equal(dummyOID) && json.Unmarshal(extension.Value, &found) == nil &&
				string(found.UserData) == string(hash[:]) && string(found.Nonce) == string(nonce) {
				return nil
			}
			if extension.Id.Equal(vtpmOID) {
				return judgeQuote(extension.Value, hash[:], nonce)
			}
		}
		return errors.New("no document binds this key and this nonce")
	}
}

func clientConfig() *tls.Config {
	nonce := newNonce()
	return &tls.Config{
		InsecureSkipVerify:    true, // evidence decides, below
		VerifyPeerCertificate: judge(nonce),
		NextProtos:            []string{"h2", tokenPrefix + hex.EncodeToString(nonce)},
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(info.AcceptableCAs) != 1 {
				return nil, errors.New("not exactly one acceptable authority")
			}
			var name pkix.RDNSequence
			try(asn1.Unmarshal(info.AcceptableCAs[0], &name))
			theirs, err := base64.StdEncoding.DecodeString(name[0][0].Value.(string))
			return certificate("peer", theirs), err
		},
	}
}

// offered is the client's nonce, among the protocols.
func offered(hello *tls.ClientHelloInfo) ([]byte, error) {
	for _, offered := range hello.SupportedProtos {
		if text, ok := strings.CutPrefix(offered, tokenPrefix); ok {
			return hex.DecodeString(text)
		}
	}
	return nil, errors.New("no nonce among the protocols")
}

func serverConfig(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	theirs, err := offered(hello)
	if err != nil {
		return nil, err
	}
	ours := newNonce()
	authorities := x509.NewCertPool()
	carrier := certificate(base64.StdEncoding.EncodeToString(ours), nil)
	authorities.AddCert(try(x509.ParseCertificate(carrier.Certificate[0])))
	return &tls.Config{
		Certificates:          []tls.Certificate{*certificate("peer", theirs)},
		ClientAuth:            tls.RequireAnyClientCert,
		ClientCAs:             authorities,
		VerifyPeerCertificate: judge(ours),
		NextProtos:            []string{"h2"},
	}, nil
}

func hear(from io.Reader, want string) {
	said := make([]byte, 4)
	try(io.ReadFull(from, said))
	if string(said) != want {
		try(0, fmt.Errorf("heard %q, not %q", said, want))
	}
}

func main() {
	if strings.HasSuffix(os.Args[1], "client") {
		config := clientConfig()
		if os.Args[1] == "named-client" { // its nonce is the server name, in base64
			token := config.NextProtos[1][len(tokenPrefix):]
			config.ServerName = base64.StdEncoding.EncodeToString(try(hex.DecodeString(token)))
			config.NextProtos = []string{"h2"}
		}
		connection := try(tls.Dial("tcp", os.Args[2], config))
		try(connection.Write([]byte("ping")))
		hear(connection, "pong")
		return
	}
	listener := try(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println(listener.Addr())
	connection := tls.Server(try(listener.Accept()), &tls.Config{GetConfigForClient: serverConfig})
	hear(connection, "ping")
	try(connection.Write([]byte("pong")))
	try(0, connection.Close())
}
