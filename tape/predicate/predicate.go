package predicate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"github.com/tapestore/tapestore/runstore"
)

const (
	// MaxText is the maximal length of a predicate's text, in bytes.
	MaxText = 4 << 10
	// MaxCost is the maximal cost of one evaluation: 10,000 units. An expression over the members
	// of a payload takes 5 to 50. A unit takes about 100 ns, and up to 7 µs in nested
	// comprehensions, where CEL's time for a unit grows with the number of units.
	MaxCost = 10_000

	// maxDepth is 50: the time and memory of CEL's parser grow faster than linearly with the
	// nesting.
	maxDepth = 50
	// maxNodes is 1,000: a text of MaxText bytes with more nodes is a list of constants, and each
	// evaluation allocates all of them.
	maxNodes = 1000
	// maxRecoveries is 0: the first syntax error is enough, and the search for more may take long.
	maxRecoveries = 0
)

// Reason is why a predicate failed on an entry.
type Reason int

// The reasons of faults.
const (
	// Compile: the text is not an expression, has a type error, or is too large or too deep.
	Compile Reason = iota
	// Eval: the evaluation failed, for example because a member is missing.
	Eval
	// Cost: the evaluation would have cost more than [MaxCost].
	Cost
	// NotBool: the result is not a bool.
	NotBool

	reasons
)

// String returns the reason's name, for logs and metrics.
func (r Reason) String() string {
	return [...]string{"compile", "eval", "cost", "not_bool"}[r]
}

// Error returns the reason in words. They contain nothing of the text or the entry.
func (r Reason) Error() string {
	return [...]string{
		"the expression does not compile", "the evaluation failed", "the evaluation costs too much", "the result is not a bool",
	}[r]
}

// Counts is the number of entries that were not selected because of a fault, by reason.
type Counts [reasons]int64

type counters [reasons]atomic.Int64

func (c *counters) counts() (all Counts) {
	for i := range c {
		all[i] = c[i].Load()
	}
	return all
}

// Predicate is a compiled expression. The zero Predicate selects every entry.
type Predicate struct {
	text    string
	program cel.Program // nil if err is set
	err     error       // why the text does not compile
	faults  counters
	total   *counters // the counters of the cache
}

// check returns the errors of Compile.
func check(text string) error {
	const name = "predicate_cel"
	switch {
	case len(text) > MaxText:
		return &runstore.InputError{Kind: runstore.ErrTooLarge, Field: name, Problem: fmt.Sprintf("%d bytes, the limit is %d", len(text), MaxText)}
	case !utf8.ValidString(text):
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: name, Problem: "not valid UTF-8"}
	default:
		return nil
	}
}

// compile returns the predicate of a text that check accepts.
func compile(text string) (p *Predicate) {
	p = &Predicate{text: text}
	if strings.TrimSpace(text) == "" {
		return p
	}
	defer func() {
		if fault := recover(); fault != nil {
			p.err = fmt.Errorf("internal fault: %v", fault)
		}
		if p.err != nil {
			p.program, p.err = nil, reduced(p.err)
		}
	}()
	env, err := environment()
	if err != nil {
		p.err = err
		return p
	}
	ast, issues := env.Compile(text)
	if p.err = issues.Err(); p.err != nil {
		return p
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		p.err = fmt.Errorf("the result is of type %s, not bool", t)
		return p
	}
	p.program, p.err = env.Program(ast, programOptions()...)
	return p
}

// maxFault is 1 KiB: the part of a compiler's message that is kept. It may list hundreds of errors.
const maxFault = 1 << 10

// reduced returns an error with the beginning of err's message. It does not keep the compiler's
// data alive.
func reduced(err error) error {
	text := err.Error()
	return errors.New(strings.Clone(strings.ToValidUTF8(text[:min(len(text), maxFault)], "")))
}

// Text returns the text of the predicate.
func (p *Predicate) Text() string { return p.text }

// Err returns why the text does not compile, or nil.
func (p *Predicate) Err() error { return p.err }

// Counts returns the number of the predicate's faults, by reason.
func (p *Predicate) Counts() Counts { return p.faults.counts() }

// Match reports whether the predicate selects an entry. A fault is no match and is counted.
func (p *Predicate) Match(in *Input) bool {
	selected, _ := p.Evaluate(in)
	return selected
}

// Evaluate is Match, and also returns the fault, a [Reason], if there is one.
func (p *Predicate) Evaluate(in *Input) (selected bool, fault error) {
	if p.err != nil {
		return false, p.fault(Compile)
	}
	if p.program == nil {
		return true, nil
	}
	out, err := eval(p.program, in)
	if err != nil {
		var cancelled interpreter.EvalCancelledError
		if errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded || errors.Is(err, errCost) {
			return false, p.fault(Cost)
		}
		return false, p.fault(Eval)
	}
	value, ok := out.(types.Bool)
	if !ok {
		return false, p.fault(NotBool)
	}
	return bool(value), nil
}

// eval evaluates a program. CEL counts no cost for a step of a comprehension over constants, so the
// number of steps is limited too, to MaxCost: every other step costs at least one unit. An
// evaluation with more steps fails, whatever its result.
func eval(program cel.Program, in *Input) (ref.Val, error) {
	frame, err := interpreter.NewExecutionFrame(in)
	if err != nil {
		return nil, err
	}
	defer frame.Close()
	if err := frame.SetContext(ended, MaxCost); err != nil { // CEL checks the context after MaxCost steps
		return nil, err
	}
	out, _, err := program.Eval(frame)
	if err == nil && frame.CheckInterrupt() || errors.Is(err, interpreter.InterruptError{}) {
		return nil, errCost
	}
	return out, err
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// fault counts a fault and returns it.
func (p *Predicate) fault(r Reason) error {
	p.faults[r].Add(1)
	if p.total != nil {
		p.total[r].Add(1)
	}
	return r
}
