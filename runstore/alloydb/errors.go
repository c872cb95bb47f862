package alloydb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"cloud.google.com/go/alloydbconn/errtype"
	"google.golang.org/api/googleapi"

	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// stage is how far a dial got.
type stage int

const (
	// beforeExchange: the dial failed before the metadata exchange. The connector has seen the
	// failure and refreshes its certificate by itself.
	beforeExchange stage = iota
	// exchangeFailed: the server refused, or the connection was lost, during the metadata exchange.
	exchangeFailed
	// certificateRefused: the server ended TLS with an alert. After the handshake it does so only
	// if it rejects the certificate.
	certificateRefused
)

// stageOf classifies a dial's error by the connector's types: errors of the exchange have none of
// them.
func stageOf(err error) stage {
	var config *errtype.ConfigError
	var refresh *errtype.RefreshError
	var dial *errtype.DialError
	var op *net.OpError
	switch {
	case errors.As(err, &config), errors.As(err, &refresh), errors.As(err, &dial),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return beforeExchange
	case errors.As(err, &op) && op.Op == "remote error": // crypto/tls, for an alert
		return certificateRefused
	default:
		return exchangeFailed
	}
}

// explain adds advice to an error of the connector. While the store is being opened, an error that
// waiting does not fix is final. Later it is not: rights that were revoked by mistake may come
// back, and open connections keep working.
func (c *connector) explain(err error) error {
	advice, lasting := c.advice(err)
	if advice == "" {
		return err
	}
	err = fmt.Errorf("%s: %w", advice, err)
	if lasting && c.opening.Load() {
		return outcome.Unavailable(err) // the store does not retry an error that has a kind
	}
	return err
}

const credentialsAdvice = "the credentials are the Application Default Credentials: an attached service account, or gcloud auth application-default login"

// advice returns what to do about an error, or "", and whether the error lasts until somebody acts.
func (c *connector) advice(err error) (advice string, lasting bool) {
	var config *errtype.ConfigError
	var api *googleapi.Error
	switch {
	case errors.As(err, &config):
		return "the AlloyDB connector cannot reach " + c.instance + " in this way; choose among ip=private, ip=public and ip=psc one that the instance has", true
	case errors.As(err, &api):
		switch api.Code {
		case http.StatusBadRequest, http.StatusNotFound:
			return "AlloyDB knows no instance " + c.instance + "; look for a misspelt part of its name (gcloud alloydb instances list)", true
		case http.StatusUnauthorized:
			return "AlloyDB's Admin API takes no credentials like these; " + credentialsAdvice, true
		case http.StatusForbidden:
			return "AlloyDB's Admin API refuses this principal; grant it roles/alloydb.client and roles/serviceusage.serviceUsageConsumer " +
				"(for auth=iam also roles/alloydb.databaseUser) in the project of " + c.instance + ", and see that the AlloyDB API is enabled there", true
		case http.StatusTooManyRequests:
			return "the quota of AlloyDB's Admin API is used up", false
		}
	case stageOf(err) == certificateRefused:
		return "AlloyDB refuses the connector's certificate; is the clock of this machine right?", false
	case isRefusal(err):
		return "AlloyDB lets the connector not in; with auth=iam the principal needs roles/alloydb.databaseUser and a database user of its name, " +
			"and with a password too roles/alloydb.client", false
	}
	return "", false
}

// isRefusal reports whether the exchange ended with a message of the server and not with a network
// error.
func isRefusal(err error) bool {
	var network net.Error
	return stageOf(err) == exchangeFailed && errors.Unwrap(err) == nil && !errors.As(err, &network) &&
		!errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
}
