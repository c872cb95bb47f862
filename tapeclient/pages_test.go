package tapeclient

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// A loop reads the pages of a list one after the other, passes over empty ones, and begins again at the
// end and after an error.
func TestPagesOfALoop(t *testing.T) {
	t.Parallel()
	failed := errors.New("x")
	type reply struct {
		entries int
		next    string
		err     error
	}
	replies := []reply{
		{2, "a", nil}, // a full page
		{0, "b", nil}, {1, "", nil},
		{1, "a", nil}, {0, "", failed},
		{1, "", nil},
	}
	var p pages
	var tokens []string
	for _, want := range []error{nil, nil, nil, failed, nil} {
		err := p.look(func(token string) (int, string, error) {
			r := replies[len(tokens)]
			tokens = append(tokens, token)
			return r.entries, r.next, r.err
		})
		if err != want {
			t.Errorf("after %q: %v, want %v", tokens, err, want)
		}
	}
	if want := []string{"", "a", "b", "", "a", ""}; !slices.Equal(tokens, want) {
		t.Errorf("tokens %q, want %q", tokens, want)
	}
	empty := 0
	if err := p.look(func(string) (int, string, error) { empty++; return 0, fmt.Sprint(empty), nil }); err != nil || empty != maxEmptyPages || p.token != fmt.Sprint(empty) {
		t.Errorf("%d empty pages, token %q, %v", empty, p.token, err)
	}
}
