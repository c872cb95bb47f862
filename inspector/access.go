package inspector

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
)

// Permission is what a caller of the API may do.
type Permission int

// The permissions. Each includes those before it.
const (
	// NoPermission refuses the request.
	NoPermission Permission = iota
	// Read permits to read every run of the store, of every tenant.
	Read
	// Break permits to break leases.
	Break
)

// Access is the result of authorising a request.
type Access struct {
	Permission Permission
	// Operator, if not empty, is the authenticated name of the caller. A break stores this name and
	// refuses another.
	Operator string
}

// Errors of an [Options.Authorize].
var (
	// ErrUnauthenticated: the request has no credentials, or bad ones. The page asks for a token, and
	// sends it as Authorization: Bearer.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrForbidden: the caller is known and may not read.
	ErrForbidden = errors.New("not permitted")
	// ErrTooMany: the caller makes too many requests.
	ErrTooMany = errors.New("too many requests")
)

// loopbackHost reports whether host, without a port, names this machine for itself.
func loopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// hostOf returns the host of a Host header without its port and without the brackets of an IPv6
// address.
func hostOf(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = header
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// accessKey is the key of the Access in the context of a request.
type accessKey struct{}

// accessOf returns the access that the request was granted.
func accessOf(ctx context.Context) Access {
	access, _ := ctx.Value(accessKey{}).(Access)
	return access
}

// policy is the Content-Security-Policy of every response.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard sets the headers of every response, and refuses requests that another site may have caused.
func (in *inspector) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !in.opts.AllowHost(hostOf(r.Host)) {
			in.refuse(w, r, &apiError{Status: http.StatusMisdirectedRequest, Kind: "host", Message: "the Host of the request is not a name of this server"})
			return
		}
		if err := in.crossOrigin.Check(r); err != nil {
			in.refuse(w, r, &apiError{Status: http.StatusForbidden, Kind: "cross-origin", Message: "the request comes from another site"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorize refuses requests to the API without permission, and those that another site caused. A
// browser says in Sec-Fetch-Site where a request comes from; another program does not send it.
func (in *inspector) authorize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
			in.refuse(w, r, &apiError{Status: http.StatusForbidden, Kind: "cross-origin", Message: "the request comes from another site"})
			return
		}
		access, err := in.opts.Authorize(r)
		switch {
		case errors.Is(err, ErrUnauthenticated):
			w.Header().Set("WWW-Authenticate", "Bearer")
			in.refuse(w, r, &apiError{Status: http.StatusUnauthorized, Kind: "unauthenticated", Message: "a token is needed"})
		case errors.Is(err, ErrForbidden), err == nil && access.Permission < Read:
			in.refuse(w, r, &apiError{Status: http.StatusForbidden, Kind: "forbidden", Message: "this token does not permit to read the store"})
		case errors.Is(err, ErrTooMany):
			w.Header().Set("Retry-After", "5")
			in.refuse(w, r, &apiError{Status: http.StatusTooManyRequests, Kind: "busy", Message: "you make too many requests; repeat this one later"})
		case err != nil:
			in.opts.Logger.Error("inspector: a request could not be authorised", "error", err)
			in.refuse(w, r, &apiError{Status: http.StatusServiceUnavailable, Kind: "authorisation", Message: "the token cannot be checked now; the log of the server says why"})
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accessKey{}, access)))
		}
	})
}
