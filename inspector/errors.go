package inspector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/tapestore/tapestore/runstore"
)

// apiError is an error of the API, as JSON: {"error": {"kind": …, "message": …}}.
type apiError struct {
	Status  int    `json:"-"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
	// Token is the run's last token where a break was refused because the token has moved (kind "moved"),
	// and the token to break next where a break has left a step over two runs in progress (kind
	// "incomplete").
	Token int64 `json:"token,omitempty"`
}

func (e *apiError) Error() string { return e.Message }

// badRequest returns an error about a parameter of the request.
func badRequest(parameter, format string, args ...any) *apiError {
	return &apiError{Status: http.StatusBadRequest, Kind: "invalid", Message: parameter + ": " + fmt.Sprintf(format, args...)}
}

// statusOf is the HTTP status of the kinds of errors that a read can have. The text of other errors
// may name the engine's hosts, and goes to the log only.
var statusOf = []struct {
	kind   error
	status int
}{
	{runstore.ErrNotFound, http.StatusNotFound},
	{runstore.ErrInvalid, http.StatusBadRequest},
	{runstore.ErrTooLarge, http.StatusBadRequest},
	{runstore.ErrUnsupported, http.StatusNotImplemented},
	{runstore.ErrStoreBehind, http.StatusConflict},
	{runstore.ErrConflict, http.StatusConflict},
	{runstore.ErrCorrupt, http.StatusInternalServerError},
}

// toAPIError returns the error that a client sees.
func (in *inspector) toAPIError(r *http.Request, err error) *apiError {
	var known *apiError
	if errors.As(err, &known) {
		return known
	}
	if kind := runstore.KindOf(err); kind != runstore.ErrUnknownOutcome {
		for _, s := range statusOf {
			if kind == s.kind {
				return &apiError{Status: s.status, Kind: kind.Error(), Message: shown(err.Error())}
			}
		}
	}
	if r.Context().Err() == nil { // otherwise the client went away
		in.opts.Logger.Warn("inspector: a request failed", "path", r.URL.Path, "error", err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &apiError{Status: http.StatusGatewayTimeout, Kind: "timeout", Message: fmt.Sprintf("the store did not answer within %v", in.opts.Timeout)}
	}
	return &apiError{Status: http.StatusServiceUnavailable, Kind: "unavailable", Message: "the store cannot be read now; the log of the server says why"}
}

// refuse writes an error.
func (in *inspector) refuse(w http.ResponseWriter, r *http.Request, err error) {
	e := in.toAPIError(r, err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(map[string]*apiError{"error": e}) // the client may be gone
}
