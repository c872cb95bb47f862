// Package fencehttp carries fencing tokens over HTTP: a client sets two headers, and a server's
// middleware checks them.
//
//	Fencing-Token: 4398046511105
//	Fencing-Resource: accounts/7
//
// The token is decimal. In the resource, bytes that are not printable ASCII, spaces and % are
// percent-encoded.
//
// The server answers a fence that it refuses with a JSON body, a [Refusal]:
//
//	status  error              the handler has not run, because
//	412     fenced             the token is stale; the header Fencing-Current has the current one
//	400     fence_missing      there is no fence, and Options.Unfenced does not let it through
//	400     fence_malformed    a header is malformed, repeated or missing, or names another resource
//	503     fence_full         the checker remembers no further resource
//	503     fence_unavailable  the checker could not decide; a repeat is safe
//
// A status 412 also repeats the two headers of the request. A service may forward the refusal of its
// own fence by a third service: its client compares them with the fence that it presented ([Refused]).
//
// Package fence says what a check guarantees and what it does not.
package fencehttp
