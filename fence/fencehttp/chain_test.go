package fencehttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"testing"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencehttp"
	"github.com/tapestore/tapestore/runstore"
)

// A service that is refused by another one forwards the response. Its caller is fenced only if the
// refused fence is the caller's own.
func TestForwardedRefusal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		caller, onward fence.Presented // a zero caller presents no fence
		fenced         bool
	}{
		{"of another token", fence.Presented{Resource: "a", Token: 4}, fence.Presented{Resource: "a", Token: 5}, false},
		{"of another resource", fence.Presented{Resource: "a", Token: 5}, fence.Presented{Resource: "b", Token: 5}, false},
		{"to a caller without a fence", fence.Presented{}, fence.Presented{Resource: "a", Token: 5}, false},
		{"of the caller's fence", fence.Presented{Resource: "caf\u00e9 100%/7", Token: 5}, fence.Presented{Resource: "caf\u00e9 100%/7", Token: 5}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			checker := newMemory(t)
			if err := checker.Check(t.Context(), test.onward.Resource, 6); err != nil {
				t.Fatal(err)
			}
			second := start(t, fencehttp.Middleware(checker, http.NotFoundHandler(), nil))
			forward := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				resp, err := post(r.Context(), second, test.onward.Resource, test.onward.Token)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if err := fencehttp.Refused(resp); !errors.Is(err, runstore.ErrFenced) {
					t.Errorf("the service got %v, want ErrFenced", err)
				}
				maps.Copy(w.Header(), resp.Header)
				w.WriteHeader(resp.StatusCode)
				_, _ = io.Copy(w, resp.Body)
			})
			first := start(t, fencehttp.Middleware(newMemory(t), forward, &fencehttp.Options{Unfenced: func(*http.Request) bool { return true }}))
			resp, err := post(t.Context(), first, test.caller.Resource, test.caller.Token)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if err := fencehttp.Refused(resp); resp.StatusCode != http.StatusPreconditionFailed || errors.Is(err, runstore.ErrFenced) != test.fenced {
				t.Errorf("status %d, got %v; want 412, ErrFenced %v", resp.StatusCode, err, test.fenced)
			}
		})
	}
}

// renaming is a checker that names resources otherwise than its callers do.
type renaming struct{ fence.Checker }

func (c renaming) Check(ctx context.Context, resource string, token runstore.Token) error {
	return c.Checker.Check(ctx, "tenant/"+resource, token)
}

// A refusal states what the caller presented, however the checker names it.
func TestRefusalByARenamingChecker(t *testing.T) {
	t.Parallel()
	checker := renaming{newMemory(t)}
	if err := checker.Check(t.Context(), "a", 6); err != nil {
		t.Fatal(err)
	}
	req := request("POST", fencehttp.TokenHeader, "5", fencehttp.ResourceHeader, "a")
	resp, _ := serve(checker, nil, req)
	resp.Request = req
	var stale *fence.StaleError
	if err := fencehttp.Refused(resp); !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: "a", Presented: 5, Current: 6}) {
		t.Errorf("got %v, want the caller's fence", err)
	}
	var body fencehttp.Refusal
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || body.Resource != "a" || body.Presented != 5 || body.Current != 6 {
		t.Errorf("got %+v, %v; want the caller's fence", body, err)
	}
}

// A server that does not state the fence that it refused, or that accepts a malformed one, refuses
// the caller all the same, unless the current token cannot have refused the caller's.
func TestRefusalWithoutFacts(t *testing.T) {
	t.Parallel()
	const token, resource, current = fencehttp.TokenHeader, fencehttp.ResourceHeader, fencehttp.CurrentHeader
	fenced := []string{token, "5", resource, "a"}
	for _, test := range []struct {
		name     string
		request  []string
		response []string
		refused  bool
	}{
		{"newer", fenced, []string{current, "6"}, true},
		{"equal, because the grant was ended", fenced, []string{current, "5"}, true},
		{"older", fenced, []string{current, "4"}, false},
		{"unreadable", fenced, []string{current, "?"}, true},
		{"zero", fenced, []string{current, "0"}, true},
		{"token only", fenced, []string{current, "6", token, "5"}, true},
		{"stated", fenced, []string{current, "6", token, "5", resource, "a"}, true},
		{"stated by a checker that knows more", fenced, []string{current, "5", token, "5", resource, "a"}, true},
		{"another token", fenced, []string{current, "6", token, "4", resource, "a"}, false},
		{"another resource", fenced, []string{current, "6", token, "5", resource, "b"}, false},
		{"of a malformed fence", []string{token, "5", token, "5", resource, "a"}, []string{current, "6"}, true},
		{"of no fence", nil, []string{current, "6"}, false},
	} {
		resp := &http.Response{StatusCode: 412, Header: request("POST", test.response...).Header, Request: request("POST", test.request...)}
		if err := fencehttp.Refused(resp); errors.Is(err, runstore.ErrFenced) != test.refused {
			t.Errorf("%s: got %v, want ErrFenced %v", test.name, err, test.refused)
		}
	}
	// net/http sends these headers as canonical ones.
	req := request("POST")
	req.Header["fencing-token"], req.Header["fencing-resource"] = []string{"5"}, []string{" a "}
	resp := &http.Response{StatusCode: 412, Header: request("POST", current, "6", token, "5", resource, "a").Header, Request: req}
	if err := fencehttp.Refused(resp); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("keys that are not canonical: got %v, want ErrFenced", err)
	}
}
