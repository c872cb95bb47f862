package predicate

import (
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// unitBytes is 64: the bytes of text that a function processes in about 100 ns, allocations
// included.
const unitBytes = 64

// units returns the cost of processing n bytes.
func units(n int) uint64 { return 1 + uint64(n/unitBytes) }

// estimator computes the cost of a call. CEL's own numbers ignore costs that depend on the size of
// a payload: comparing two maps costs one unit there.
type estimator struct{ constants map[string]*regex }

// compileCost is the extra cost of a non-constant regular expression for each instruction, because
// it is compiled for every match.
const compileCost = 5

// zoneCost is the cost of a function with a time zone, because the zone is read from a file.
const zoneCost = 500

// CallCost implements interpreter.ActualCostEstimator.
func (e estimator) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	cost := uint64(1)
	switch function {
	case operators.Equals, operators.NotEquals:
		cost = weighSmaller(args[0], args[1]) // the comparison ends with the smaller value
	case operators.In, operators.OldIn:
		cost = units(lengthOf(args[0]))
		if list, ok := args[1].(traits.Lister); ok {
			cost += weigh(list, MaxCost+1)
		}
	case matches:
		pattern, _ := args[1].(types.String)
		if r := e.constants[string(pattern)]; r != nil {
			cost = matchCost(lengthOf(args[0]), r.instructions)
		} else if n, err := measure(string(pattern)); err == nil {
			cost = matchCost(lengthOf(args[0]), n) + compileCost*uint64(n)
		} else {
			cost = units(len(pattern)) * compileCost
		}
	case overloads.TimeGetFullYear, overloads.TimeGetMonth, overloads.TimeGetDayOfYear, overloads.TimeGetDayOfMonth,
		overloads.TimeGetDate, overloads.TimeGetDayOfWeek, overloads.TimeGetHours, overloads.TimeGetMinutes,
		overloads.TimeGetSeconds, overloads.TimeGetMilliseconds:
		if len(args) > 1 {
			cost = zoneCost
		}
	default:
		for _, a := range args {
			cost += units(lengthOf(a)) - 1
		}
	}
	return &cost
}

// lengthOf returns the length of a text in bytes; 0 for any other value.
func lengthOf(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	default:
		return 0
	}
}

// weighSmaller returns the cost of visiting the smaller of two values, or a number above MaxCost if
// it is more. It visits at most a few times that many nodes of the larger one.
func weighSmaller(a, b ref.Val) uint64 {
	for limit := uint64(16); ; limit *= 4 {
		if cost := min(weigh(a, limit), weigh(b, limit)); cost < limit || cost > MaxCost {
			return cost
		}
	}
}

// weigh returns the cost of visiting every node of a value, or a number of at least limit if it is
// more.
func weigh(v ref.Val, limit uint64) uint64 {
	cost := units(lengthOf(v))
	switch v := v.(type) {
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True && cost < limit; {
			key := it.Next()
			cost += units(lengthOf(key)) + weigh(v.Get(key), limit-cost)
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True && cost < limit; {
			cost += weigh(it.Next(), limit-cost)
		}
	}
	return cost
}
