package alloydb

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"cloud.google.com/go/alloydb/connectors/apiv1alpha/connectorspb"
	"google.golang.org/protobuf/proto"
)

// The metadata exchange comes between the TLS handshake and the database's own
// protocol: one message of each side, behind its length in four bytes.
const (
	maxHello  = 16 << 10 // the connector's buffer
	maxReason = 4 << 10  // well below it
)

// refusalError is the reason for which a client is refused, as sent to the client.
type refusalError struct{ reason string }

func (e *refusalError) Error() string { return e.reason }

func readExchange(client io.Reader) (*connectorspb.MetadataExchangeRequest, error) {
	var size [4]byte
	if _, err := io.ReadFull(client, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxHello {
		return nil, &refusalError{fmt.Sprintf("a metadata exchange of %d bytes; is the client the AlloyDB connector?", n)}
	}
	message := make([]byte, n)
	if _, err := io.ReadFull(client, message); err != nil {
		return nil, err
	}
	hello := &connectorspb.MetadataExchangeRequest{}
	if err := proto.Unmarshal(message, hello); err != nil {
		return nil, &refusalError{fmt.Sprintf("not a metadata exchange: %v", err)}
	}
	return hello, nil
}

// checkLogin decides whether a client is admitted. It returns the counter of the client's kind of
// login; the error is a refusal.
func (s *Server) checkLogin(hello *connectorspb.MetadataExchangeRequest) (login func(*Stats) *int, err error) {
	s.mu.Lock()
	s.userAgent = hello.GetUserAgent()
	reason := s.reason
	s.mu.Unlock()
	if reason != "" {
		return nil, &refusalError{reason}
	}
	const wrong = "the OAuth2 token is not the one that this emulator's TokenSource hands out"
	switch kind := hello.GetAuthType(); kind {
	case connectorspb.MetadataExchangeRequest_AUTO_IAM:
		if hello.GetOauth2Token() != s.token {
			return nil, &refusalError{"IAM authentication failed: " + wrong}
		}
		return func(n *Stats) *int { return &n.IAM }, nil
	case connectorspb.MetadataExchangeRequest_DB_NATIVE, connectorspb.MetadataExchangeRequest_AUTH_TYPE_UNSPECIFIED:
		// The connector sends its token here too: it must be allowed to connect.
		if hello.GetOauth2Token() != s.token {
			return nil, &refusalError{"permission alloydb.instances.connect denied: " + wrong}
		}
		return func(n *Stats) *int { return &n.Password }, nil
	default:
		return nil, &refusalError{fmt.Sprintf("unknown kind of authentication: %v", kind)}
	}
}

// writeExchangeReply ends the exchange: the client is admitted, or refused if there is a reason.
func writeExchangeReply(client io.Writer, reason string) error {
	response := &connectorspb.MetadataExchangeResponse{ResponseCode: connectorspb.MetadataExchangeResponse_OK}
	if reason != "" {
		response.ResponseCode = connectorspb.MetadataExchangeResponse_ERROR
		response.Error = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	}
	message, err := proto.Marshal(response)
	if err != nil {
		return err
	}
	// One write: the connector reads the length and the message each at one go.
	_, err = client.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...))
	return err
}
