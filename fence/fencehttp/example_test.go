package fencehttp_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencehttp"
	"github.com/tapestore/tapestore/runstore"
)

// A service refuses the late call of a holder that was replaced. It derives the resource from the
// path itself, and lets reads pass without a fence.
func ExampleMiddleware() {
	checker, err := fence.NewMemory(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, _ := fence.FromContext(r.Context())
		fmt.Println("paid under token", p.Token)
	})
	server := httptest.NewServer(fencehttp.Middleware(checker, pay, &fencehttp.Options{
		Unfenced: fencehttp.Reads,
		Resource: func(r *http.Request) (string, error) { return r.URL.Path, nil },
	}))
	defer server.Close()

	for _, token := range []runstore.Token{1, 2, 1} {
		req, err := http.NewRequest(http.MethodPost, server.URL+"/accounts/7", nil)
		if err == nil {
			err = fencehttp.SetHeaders(req.Header, "/accounts/7", token)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = resp.Body.Close()
		refused := fencehttp.Refused(resp)
		fmt.Println(resp.Status, errors.Is(refused, runstore.ErrFenced))
	}
	// Output:
	// paid under token 1
	// 200 OK false
	// paid under token 2
	// 200 OK false
	// 412 Precondition Failed true
}
