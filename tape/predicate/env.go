package predicate

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// This package has its own function matches, because the cost of CEL's is known only after it has
// run.
const (
	matches       = "matches"
	matchesGlobal = "bounded_matches"
	matchesMember = "bounded_matches_string"
)

// environment returns the variables and functions of predicates.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	subset := &env.LibrarySubset{ExcludeFunctions: []*env.Function{{Name: matches}}}
	texts := []*cel.Type{cel.StringType, cel.StringType}
	return cel.NewCustomEnv(
		cel.StdLib(cel.StdLibSubset(subset)),
		cel.Function(matches,
			cel.Overload(matchesGlobal, texts, cel.BoolType),
			cel.MemberOverload(matchesMember, texts, cel.BoolType),
			cel.SingletonBinaryBinding(func(text, pattern ref.Val) ref.Val {
				r, err := compileRegex(string(pattern.(types.String)))
				if err != nil {
					return types.WrapErr(err)
				}
				return r.match(text)
			})),
		cel.Variable("global_seq", cel.IntType),
		cel.Variable("seq", cel.IntType),
		cel.Variable("ts_ms", cel.IntType),
		cel.Variable("schema_version", cel.IntType),
		cel.Variable("run_id", cel.StringType),
		cel.Variable("kind", cel.StringType),
		cel.Variable("subject", cel.StringType),
		cel.Variable("trace_id", cel.StringType),
		cel.Variable("payload", cel.DynType),
		cel.CrossTypeNumericComparisons(true),
		cel.EnableHiddenAccumulatorName(true),
		cel.ParserRecursionLimit(maxDepth),
		cel.ParserErrorRecoveryLimit(maxRecoveries),
		cel.ParserExpressionSizeLimit(MaxText),
		cel.ExpressionNodeLimit(maxNodes),
	)
})

// programOptions returns the options of one program. Its constant regular expressions are compiled
// once.
func programOptions() []cel.ProgramOption {
	constants := map[string]*regex{} // complete, and only read, once the program is made
	constant := func(overload string) *interpreter.RegexOptimization {
		return &interpreter.RegexOptimization{
			Function: matches, OverloadID: overload, RegexIndex: 1,
			Factory: func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
				r, err := compileRegex(pattern)
				if err != nil {
					return nil, err
				}
				constants[pattern] = r
				return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
					return r.match(args[0])
				}), nil
			},
		}
	}
	return []cel.ProgramOption{
		cel.OptimizeRegex(constant(matchesGlobal), constant(matchesMember)),
		cel.CostTracking(estimator{constants}),
		cel.CostLimit(MaxCost),
		cel.InterruptCheckFrequency(MaxCost),
		cel.CustomDecoratorV2(orderMaps),
	}
}

// orderMaps replaces the node of a map in an expression by one whose keys have an order.
func orderMaps(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	if m, ok := node.(interpreter.InterpretableConstructor); ok && m.Type() == types.MapType {
		return mapNode{m}, nil
	}
	return node, nil
}

// mapNode is the node of a map in an expression.
type mapNode struct {
	interpreter.InterpretableConstructor
}

// Exec implements interpreter.InterpretableV2.
func (n mapNode) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	vals := n.InitVals() // each key with its value
	entries, keys := make(map[ref.Val]ref.Val, len(vals)/2), make([]ref.Val, 0, len(vals)/2)
	for i := 0; i < len(vals); i += 2 {
		key := vals[i].Exec(frame)
		if types.IsError(key) {
			return key
		}
		value := vals[i+1].Exec(frame)
		if types.IsError(value) {
			return value
		}
		if _, ok := entries[key]; !ok {
			keys = append(keys, key)
		}
		entries[key] = value
	}
	return object{types.NewRefValMap(types.DefaultTypeAdapter, entries), types.NewRefValList(types.DefaultTypeAdapter, keys)}
}

// Eval implements interpreter.Interpretable.
func (n mapNode) Eval(vars interpreter.Activation) ref.Val {
	return n.Exec(interpreter.AsFrame(vars))
}

const (
	// maxRegex is the maximal length of a regular expression, in bytes.
	maxRegex = 1 << 10
	// maxInstructions is the maximal size of a compiled regular expression: nested repetitions in a
	// short one can take 100 MB.
	maxInstructions = 1000
)

// errCost is the fault of an evaluation that was not started because of its cost.
var errCost = errors.New("the evaluation costs too much")

// regex is a regular expression of bounded size.
type regex struct {
	compiled     *regexp.Regexp
	instructions int64
}

func compileRegex(pattern string) (*regex, error) {
	size, err := measure(pattern)
	if err != nil {
		return nil, err
	}
	compiled, err := regexp.Compile(pattern)
	return &regex{compiled, size}, err
}

// measure returns approximately the number of instructions of a compiled regular expression. It
// only parses the pattern, however large the program would be.
func measure(pattern string) (int64, error) {
	if len(pattern) > maxRegex {
		return 0, fmt.Errorf("a regular expression of %d bytes, the limit is %d", len(pattern), maxRegex)
	}
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err
	}
	size := instructions(tree)
	if size > maxInstructions {
		return 0, fmt.Errorf("a regular expression of more than %d instructions", maxInstructions)
	}
	return size, nil
}

// instructions returns approximately the number of instructions of a compiled regular expression;
// any number above maxInstructions if there are more.
func instructions(r *syntax.Regexp) int64 {
	n := int64(1)
	switch r.Op {
	case syntax.OpLiteral:
		n = int64(len(r.Rune))
	case syntax.OpRepeat:
		sub := instructions(r.Sub[0]) + 1
		return min(sub*int64(max(r.Min+1, r.Max, 1)), maxInstructions+1)
	default:
		for _, sub := range r.Sub {
			n += instructions(sub) + 1
		}
	}
	return min(n, maxInstructions+1)
}

// match matches a text, unless that would cost too much.
func (r *regex) match(v ref.Val) ref.Val {
	text, ok := v.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	if matchCost(len(text), r.instructions) > MaxCost {
		return types.WrapErr(errCost)
	}
	return types.Bool(r.compiled.MatchString(string(text)))
}

// matchCost returns the cost of matching a text of n bytes.
func matchCost(n int, instructions int64) uint64 { return units(n * int(instructions)) }
