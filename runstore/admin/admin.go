// Package admin has what operators do to a store as a whole: plan and apply changes of its schema,
// check the store and what it runs on, and purge a run with a record of the decision.
//
// An adapter registers what its engine offers with [Register], under the schemes of its URLs. The
// commands tapestore migrate, doctor and run purge print what this package returns.
package admin

import (
	"context"
	"fmt"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// Engine is what an adapter offers to operators. A nil function is not offered. URLs are those that
// runstore.Open takes, and errors contain no secrets of a URL.
type Engine struct {
	// Plan compares the schema of the store at u with this program's. It only reads. Errors:
	// ErrUnsupported for a schema that is newer than this program's; those of runstore.Open.
	Plan func(ctx context.Context, u runstore.URL) (Plan, error)
	// Apply brings the schema to this program's version, whatever u says about creation and
	// migration. It may be repeated, and may run in several processes at once: after an error a
	// repeat continues or starts over. It needs the rights that Plan's steps name and no others, so that a role
	// without rights to the schema can serve afterwards.
	Apply func(ctx context.Context, u runstore.URL) error
	// Check checks what the store runs on: schema, permissions, settings. It only reads, and opens
	// no store. It reports what it cannot read as a finding.
	Check func(ctx context.Context, u runstore.URL) []Finding
}

// Plan is the difference between the schema of a store and that of this program.
type Plan struct {
	// Holder names what holds the schema, without secrets: a file, a database, a table.
	Holder string
	// Version is the version of the store's schema, 0 if there is none, and Program that of this
	// program. Program is 0 on an engine that does not count versions.
	Version, Program int
	// Steps are what Apply would do, in order. An empty plan leaves nothing to do.
	Steps []Step
}

// Step is one step of a Plan.
type Step struct {
	// Name says in a few words what changes.
	Name string `json:"name"`
	// Statements are what the engine gets: SQL, DDL, or calls of an Admin API in the form of the
	// engine's own command line.
	Statements []string `json:"statements"`
}

// Status grades a Finding.
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warn" // the store works; an operator should act
	Fail Status = "fail" // the store does not work, or does not keep its guarantees
)

// Finding is the result of one check.
type Finding struct {
	// Check names what was checked, in one or two words.
	Check string `json:"check"`
	// Status is the grade.
	Status Status `json:"status"`
	// Found is what was found.
	Found string `json:"found"`
	// Advice is what to do; empty for OK.
	Advice string `json:"advice,omitempty"`
	// KeepClosed is set where opening the store would change it, for example raise its epoch. An
	// examination does not open the store then.
	KeepClosed bool `json:"-"`
}

// Report collects findings. The zero Report is empty.
type Report []Finding

// OK adds a finding without advice.
func (r *Report) OK(check, format string, args ...any) {
	*r = append(*r, Finding{Check: check, Status: OK, Found: fmt.Sprintf(format, args...)})
}

// Warn adds a finding with advice on a store that works.
func (r *Report) Warn(check, found, advice string) {
	*r = append(*r, Finding{Check: check, Status: Warn, Found: found, Advice: advice})
}

// Fail adds a finding with advice on a store that does not work, or does not keep its guarantees.
func (r *Report) Fail(check, found, advice string) {
	*r = append(*r, Finding{Check: check, Status: Fail, Found: found, Advice: advice})
}

// KeepClosed adds a warning because of which an examination does not open the store.
func (r *Report) KeepClosed(check, found, advice string) {
	*r = append(*r, Finding{Check: check, Status: Warn, Found: found, Advice: advice, KeepClosed: true})
}

// asRole is the advice on a schema that is not there or not of this program's version: the account of a
// server often may not change it.
const asRole = "tapestore migrate --apply, as an account that may change the schema"

// Schema adds the finding of a plan.
func (r *Report) Schema(p Plan, err error) {
	switch {
	case err != nil:
		r.Fail("schema", err.Error(), "see the message; tapestore migrate shows the same")
	case p.Program > 0 && p.Version == 0 && len(p.Steps) > 0:
		r.Fail("schema", p.Holder+" holds no store", "check the URL, or create the store: "+asRole)
	case p.Program > 0 && len(p.Steps) > 0:
		r.Fail("schema", fmt.Sprintf("%s is at version %d, this program needs %d", p.Holder, p.Version, p.Program),
			"see the steps with tapestore migrate, then "+asRole)
	case len(p.Steps) > 0:
		r.Fail("schema", fmt.Sprintf("%s lacks: %s", p.Holder, p.Steps[0].Name), "see the steps with tapestore migrate, then "+asRole)
	case p.Program > 0:
		r.OK("schema", "%s is at version %d, that of this program", p.Holder, p.Version)
	default:
		r.OK("schema", "%s has all that this program needs", p.Holder)
	}
}

var registry = struct {
	sync.RWMutex
	engines map[string]Engine
}{engines: map[string]Engine{}}

// Register registers what an adapter offers under a scheme, in lower case. An adapter calls it from
// its init function, beside runstore.Register. Registering a scheme twice panics.
func Register(scheme string, e Engine) {
	registry.Lock()
	defer registry.Unlock()
	if _, dup := registry.engines[scheme]; dup {
		panic(fmt.Sprintf("admin: scheme %q is registered twice", scheme))
	}
	registry.engines[scheme] = e
}

// Of returns what the adapter of a scheme offers; nothing if it has registered nothing.
func Of(scheme string) Engine {
	registry.RLock()
	defer registry.RUnlock()
	return registry.engines[scheme]
}
