package alloydb

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/alloydb/apiv1alpha/alloydbpb"
	"cloud.google.com/go/alloydb/connectors/apiv1alpha/connectorspb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

// rawClient does what the connector does step by step, so that a test can leave a
// step out or do it wrong.
type rawClient struct {
	server *Server
	config *tls.Config
}

// newRawClient has a certificate signed by the Admin API.
func newRawClient(t *testing.T, s *Server) *rawClient {
	t.Helper()
	key := clientKey()
	public := pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&key.PublicKey)})
	body, err := protojson.Marshal(&alloydbpb.GenerateClientCertificateRequest{PublicKey: string(public)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		s.AdminEndpoint()+"/v1alpha/"+cluster+":generateClientCertificate", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("sign: %s, %v: %s", answer.Status, err, text)
	}
	var signed alloydbpb.GenerateClientCertificateResponse
	if err := protojson.Unmarshal(text, &signed); err != nil {
		t.Fatal(err)
	}
	certificate := tls.Certificate{PrivateKey: key}
	for _, text := range signed.GetPemCertificateChain() {
		block, _ := pem.Decode([]byte(text))
		certificate.Certificate = append(certificate.Certificate, block.Bytes)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(signed.GetCaCert()))
	return &rawClient{s, &tls.Config{
		Certificates: []tls.Certificate{certificate},
		RootCAs:      roots,
		ServerName:   instances[0].private,
		MinVersion:   tls.VersionTLS13,
	}}
}

// handshake dials the primary and does the client's part of the TLS handshake,
// which ends before the server has looked at the client's certificate.
func (c *rawClient) handshake(t *testing.T) *tls.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hosttest.Hang)
	defer cancel()
	conn, err := c.server.dial(ctx, "tcp", instances[0].private+":"+proxyPort)
	if err != nil {
		t.Fatal(err)
	}
	client := tls.Client(conn, c.config)
	t.Cleanup(func() { _ = client.Close() })
	_ = client.SetDeadline(time.Now().Add(hosttest.Hang))
	if err := client.HandshakeContext(ctx); err != nil {
		t.Fatal(err)
	}
	return client
}

// hello is the client's message of the metadata exchange.
func (c *rawClient) hello(t *testing.T) []byte {
	t.Helper()
	message, err := proto.Marshal(&connectorspb.MetadataExchangeRequest{
		AuthType: connectorspb.MetadataExchangeRequest_DB_NATIVE, Oauth2Token: c.server.token,
	})
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{0, 0, 0, byte(len(message))}, message...)
}

// enter does everything right, and returns the connection to what is behind.
func (c *rawClient) enter(t *testing.T) *tls.Conn {
	t.Helper()
	client := c.handshake(t)
	if _, err := client.Write(c.hello(t)); err != nil {
		t.Fatal(err)
	}
	var want, got bytes.Buffer
	if err := writeExchangeReply(&want, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(&got, client, int64(want.Len())); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Fatalf("answer: got %q, %v, want %q", got.Bytes(), err, want.Bytes())
	}
	return client
}

// wantAlert sends the hello and expects an alert of TLS instead of an answer.
func (c *rawClient) wantAlert(t *testing.T, want string) {
	t.Helper()
	client := c.handshake(t)
	_, _ = client.Write(c.hello(t)) // the alert may have come already
	n, err := client.Read(make([]byte, 1))
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("read %d bytes, %v, want an alert with %q", n, err, want)
	}
}
