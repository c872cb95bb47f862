package tapeclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/runstore"
)

// credentials returns the dial options for the security of a connection.
func (o *Options) credentials(address string, secure bool) ([]grpc.DialOption, error) {
	if o == nil {
		o = &Options{}
	}
	transport := insecure.NewCredentials()
	switch {
	case secure && o.TLS != nil:
		transport = credentials.NewTLS(o.TLS)
	case secure:
		transport = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	case o.TLS != nil:
		return nil, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "TLS", Problem: "is for a URL that begins with tapes:// or grpcs://"}
	}
	dial := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	if o.Token == nil {
		return dial, nil
	}
	if !secure && !isLoopback(address) {
		return nil, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "Token", Problem: "would be sent in clear text; use a URL that begins with tapes://"}
	}
	return append(dial, grpc.WithPerRPCCredentials(bearer(o.Token))), nil
}

func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// bearer sends a token with each call.
type bearer func(ctx context.Context) (string, error)

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := b(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: Options.credentials has checked
// the connection.
func (bearer) RequireTransportSecurity() bool { return false }

// maxToken is the size of the largest token, half of the headers that a server admits by default.
const maxToken = 8 << 10

// TokenFile returns a function for Options.Token that reads the token from a file for each call, so
// that the file may change. White space around the token is left out.
func TokenFile(path string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		token := strings.TrimSpace(string(data))
		if problem := tokenProblem(token); problem != "" {
			return "", errors.New(path + ": " + problem)
		}
		return token, nil
	}
}

// tokenProblem returns what is wrong with a token; "" if nothing is.
func tokenProblem(token string) string {
	switch {
	case token == "":
		return "has no token"
	case len(token) > maxToken:
		return fmt.Sprintf("has more than %d bytes, and is no token", maxToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "has more than a token"
	}
	return ""
}
