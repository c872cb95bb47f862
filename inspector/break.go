package inspector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

const (
	// breakHeader is the header that a request to break a lease has, with the value breakHeaderValue. A
	// form of another site cannot send it.
	breakHeader      = "X-Tapestore-Inspector"
	breakHeaderValue = "break"
	// maxBreakBody, 8 KiB, is larger than a run id, a name and a reason at their limits, escaped.
	maxBreakBody = 8 << 10
	// breakTimeout, 30 s, bounds a break. It is longer than the 15 s for which lease.Break repeats a
	// request whose reply is lost.
	breakTimeout = 30 * time.Second
	// maxBreaks, 4, is how many breaks run at a time. Their slots are apart from those of reads, so that
	// pages that read a slow store do not keep an operator from breaking a lease.
	maxBreaks = 4
)

// breakRequest is the body of a request to break a lease.
type breakRequest struct {
	Run string `json:"run"`
	// Token is the token that the operator has seen, as a decimal number.
	Token    string `json:"token"`
	Operator string `json:"operator"`
	Reason   string `json:"reason"`
}

// brokenView reports a lease that was broken.
type brokenView struct {
	From      string    `json:"from"`
	Live      bool      `json:"live"`
	Broken    string    `json:"broken_token_text"`
	Token     int64     `json:"token"`
	TokenText string    `json:"token_text"`
	Time      time.Time `json:"time"`
	Seq       int64     `json:"seq"`
}

// breakLease breaks a lease (lease.Break).
func (in *inspector) breakLease(w http.ResponseWriter, r *http.Request) {
	req, err := in.readBreak(w, r)
	if err != nil {
		in.refuse(w, r, err)
		return
	}
	release, err := take(in.breaks)
	if err != nil {
		in.refuse(w, r, err)
		return
	}
	defer release()
	// A break that was begun is finished and logged, even if the client leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), breakTimeout)
	defer cancel()
	broken, err := lease.Break(ctx, in.store, req)
	log := in.opts.Logger.With("run", shown(string(req.Run)), "token", req.Token.String(), "operator", shown(string(req.Operator)), "reason", shown(req.Reason))
	if err != nil && broken.Token == 0 {
		log.Warn("inspector: a lease was not broken", "outcome", runstore.OutcomeOf(err).String(), "error", err)
		in.refuse(w, r, breakError(err))
		return
	}
	log = log.With("from", shown(string(broken.Former.Owner)), "new_token", broken.Token.String())
	if err != nil {
		log.Warn("inspector: a lease was broken, but a step of its holder was not completed", "error", err)
		in.refuse(w, r, &apiError{
			Status: http.StatusBadGateway, Kind: "incomplete", Token: int64(broken.Token),
			Message: fmt.Sprintf("The grant has ended, and the token is now %v. But a step over two runs that the former holder led could not be completed, and may still change the other run. To complete it, break the lease of token %v.",
				broken.Token, broken.Token),
		})
		return
	}
	log.Warn("inspector: a lease was broken")
	in.write(w, r, brokenView{
		From: brief(string(broken.Former.Owner)), Live: broken.Live, Broken: broken.Former.Token.String(),
		Token: int64(broken.Token), TokenText: broken.Token.String(), Time: broken.Time, Seq: int64(broken.Seq),
	})
}

// readBreak returns the request, or why it is refused.
func (in *inspector) readBreak(w http.ResponseWriter, r *http.Request) (req lease.BreakRequest, err error) {
	access := accessOf(r.Context())
	if access.Permission < Break {
		return req, &apiError{Status: http.StatusForbidden, Kind: "forbidden", Message: "this server, or this token, does not permit to break a lease"}
	}
	if r.Header.Get(breakHeader) != breakHeaderValue {
		return req, &apiError{Status: http.StatusForbidden, Kind: "cross-origin", Message: "the request lacks the header " + breakHeader + ": " + breakHeaderValue}
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return req, &apiError{Status: http.StatusUnsupportedMediaType, Kind: "invalid", Message: "the Content-Type is not application/json"}
	}
	var body breakRequest
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBreakBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil {
		return req, badRequest("body", "%s", shown(err.Error()))
	}
	id, err := fromRef(body.Run)
	if err != nil {
		return req, badRequest("run", "%v", err)
	}
	token, err := strconv.ParseInt(body.Token, 10, 64)
	if err != nil || token < 1 {
		return req, badRequest("token", "%.40q is not a token that this page has shown", body.Token)
	}
	if access.Operator != "" && body.Operator != access.Operator {
		return req, badRequest("operator", "you are signed in as %s", shown(access.Operator))
	}
	return lease.BreakRequest{Run: runstore.RunID(id), Token: runstore.Token(token), Operator: runstore.Owner(body.Operator), Reason: body.Reason}, nil
}

// breakError returns what the client sees of an error of lease.Break.
func breakError(err error) error {
	var conflict *runstore.ConflictError
	switch {
	case errors.Is(err, lease.ErrFree):
		return &apiError{Status: http.StatusConflict, Kind: "free", Message: "Nothing was changed: the lease is free."}
	case errors.As(err, &conflict):
		return &apiError{
			Status: http.StatusConflict, Kind: "moved", Token: int64(conflict.Token),
			Message: fmt.Sprintf("Nothing was changed: the token has moved, the last one is %v.", conflict.Token),
		}
	case runstore.OutcomeOf(err) == runstore.Unknown:
		return &apiError{
			Status: http.StatusBadGateway, Kind: "unknown",
			Message: "It is unknown whether the lease was broken. Repeat it. If the token has moved then, this break or another takeover moved it: the journal of the run shows which.",
		}
	}
	switch runstore.KindOf(err) {
	case runstore.ErrNotFound, runstore.ErrInvalid, runstore.ErrTooLarge, runstore.ErrUnsupported, runstore.ErrStoreBehind:
		return err
	}
	return &apiError{Status: http.StatusServiceUnavailable, Kind: "unavailable", Message: "Nothing was changed: the store does not accept the write now; the log of the server says why."}
}
