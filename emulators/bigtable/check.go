package bigtable

import (
	"math"
	"regexp"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// The limits of the service, from its quotas page and the comments of its API.
const (
	maxKey       = 4 << 10
	maxQualifier = 16 << 10
	maxCell      = 100 << 20
	maxMutations = 100_000 // of a row, and of a request
	maxFilter    = 20_480
	maxNesting   = 20 // of chains and interleaves
	maxFamilies  = 100
)

var (
	validTableName  = regexp.MustCompile(`^[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}$`)
	validFamilyName = regexp.MustCompile(`^[-_.a-zA-Z0-9]{1,64}$`)
)

// tableSchema is the part of a table's schema that the checks need.
type tableSchema struct {
	families map[string]*adminpb.ColumnFamily
	micros   bool // its timestamps need not be whole milliseconds
}

// invalid returns the INVALID_ARGUMENT of a request that the service would refuse.
func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// check refuses a request that the service would refuse as a whole. It checks all mutations of a
// row before any is applied: the emulator detects a bad mutation only after it has applied those
// before. The entries of MutateRows are checked by checkEntries.
func (s *tableSchema) check(req any) error {
	switch req := req.(type) {
	case *bigtablepb.MutateRowRequest:
		return s.checkRow(req.RowKey, req.Mutations)
	case *bigtablepb.MutateRowsRequest:
		all := 0
		for _, entry := range req.Entries {
			all += len(entry.Mutations)
		}
		return checkCount(all)
	case *bigtablepb.CheckAndMutateRowRequest:
		if len(req.TrueMutations)+len(req.FalseMutations) == 0 {
			return invalid("a conditional mutation with no mutations at all")
		}
		for _, mutations := range [][]*bigtablepb.Mutation{req.TrueMutations, req.FalseMutations} {
			if err := s.checkRow(req.RowKey, mutations); err != nil {
				return err
			}
		}
		return checkFilter(req.PredicateFilter)
	case *bigtablepb.ReadModifyWriteRowRequest:
		return s.checkRules(req)
	case *bigtablepb.ReadRowsRequest:
		return checkFilter(req.Filter)
	case *adminpb.CreateTableRequest:
		return checkTable(req)
	case *adminpb.ModifyColumnFamiliesRequest:
		for _, change := range req.Modifications {
			if change.GetCreate() != nil && !validFamilyName.MatchString(change.Id) {
				return invalid("a family cannot be named %q", change.Id)
			}
		}
	}
	return nil
}

// checkEntries returns the error of each entry of a MutateRows request that the service would
// refuse, by index. The service applies the other entries.
func (s *tableSchema) checkEntries(req any) map[int]error {
	bad := map[int]error{}
	if req, ok := req.(*bigtablepb.MutateRowsRequest); ok {
		for i, entry := range req.Entries {
			if err := s.checkRow(entry.RowKey, entry.Mutations); err != nil {
				bad[i] = err
			}
		}
	}
	return bad
}

func checkTable(req *adminpb.CreateTableRequest) error {
	if !validTableName.MatchString(req.TableId) {
		return invalid("a table cannot be named %q", req.TableId)
	}
	families := req.GetTable().GetColumnFamilies()
	if len(families) > maxFamilies {
		return invalid("a table with %d families, the limit is %d", len(families), maxFamilies)
	}
	for family := range families {
		if !validFamilyName.MatchString(family) {
			return invalid("a family cannot be named %q", family)
		}
	}
	return nil
}

func checkCount(mutations int) error {
	if mutations > maxMutations {
		return invalid("%d mutations, the limit is %d", mutations, maxMutations)
	}
	return nil
}

func checkKey(key []byte) error {
	if len(key) == 0 || len(key) > maxKey {
		return invalid("a row key of %d bytes, it can have 1 to %d", len(key), maxKey)
	}
	return nil
}

func (s *tableSchema) checkRow(key []byte, mutations []*bigtablepb.Mutation) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := checkCount(len(mutations)); err != nil {
		return err
	}
	for i, m := range mutations {
		if err := s.checkMutation(m); err != nil {
			return status.Errorf(status.Code(err), "mutation %d: %s", i, status.Convert(err).Message())
		}
	}
	return nil
}

func (s *tableSchema) checkMutation(m *bigtablepb.Mutation) error {
	switch m := m.Mutation.(type) {
	case *bigtablepb.Mutation_SetCell_:
		set := m.SetCell
		if set.TimestampMicros != -1 { // the server's clock
			if err := s.checkTimestamp(set.TimestampMicros); err != nil {
				return err
			}
		}
		return s.checkCell(set.FamilyName, set.ColumnQualifier, len(set.Value))
	case *bigtablepb.Mutation_DeleteFromColumn_:
		del := m.DeleteFromColumn
		from, to := del.GetTimeRange().GetStartTimestampMicros(), del.GetTimeRange().GetEndTimestampMicros()
		for _, ts := range []int64{from, to} {
			if err := s.checkTimestamp(ts); err != nil {
				return err
			}
		}
		if del.TimeRange != nil && to != 0 && from >= to {
			return invalid("the range of timestamps from %d to %d is empty", from, to)
		}
		return s.checkCell(del.FamilyName, del.ColumnQualifier, 0)
	case *bigtablepb.Mutation_DeleteFromFamily_:
		return s.checkCell(m.DeleteFromFamily.FamilyName, nil, 0)
	case *bigtablepb.Mutation_DeleteFromRow_:
		return nil
	case *bigtablepb.Mutation_AddToCell_:
		_, isInt := m.AddToCell.GetInput().GetKind().(*bigtablepb.Value_IntValue)
		return s.checkAggregate(m.AddToCell.FamilyName, m.AddToCell.ColumnQualifier, m.AddToCell.Timestamp, isInt)
	case *bigtablepb.Mutation_MergeToCell_:
		_, isRaw := m.MergeToCell.GetInput().GetKind().(*bigtablepb.Value_RawValue)
		return s.checkAggregate(m.MergeToCell.FamilyName, m.MergeToCell.ColumnQualifier, m.MergeToCell.Timestamp, isRaw)
	default:
		return invalid("a mutation of type %T", m)
	}
}

func (s *tableSchema) checkCell(family string, qualifier []byte, value int) error {
	switch {
	case s.families[family] == nil:
		return status.Errorf(codes.NotFound, "the table has no family %q", family)
	case len(qualifier) > maxQualifier:
		return invalid("a column qualifier of %d bytes, the limit is %d", len(qualifier), maxQualifier)
	case value > maxCell:
		return invalid("a cell of %d bytes, the limit is %d", value, maxCell)
	}
	return nil
}

func (s *tableSchema) checkAggregate(family string, qualifier, timestamp *bigtablepb.Value, known bool) error {
	if err := s.checkCell(family, qualifier.GetRawValue(), 0); err != nil {
		return err
	}
	if s.families[family].GetValueType().GetAggregateType() == nil || !known {
		return invalid("the family %q does not aggregate such values", family)
	}
	return s.checkTimestamp(timestamp.GetRawTimestampMicros())
}

func (s *tableSchema) checkTimestamp(ts int64) error {
	unit := int64(1000)
	if s.micros {
		unit = 1
	}
	if ts < 0 || ts%unit != 0 || ts > math.MaxInt64-math.MaxInt64%unit {
		return invalid("a timestamp of %d microseconds; the table has steps of %d", ts, unit)
	}
	return nil
}

func (s *tableSchema) checkRules(req *bigtablepb.ReadModifyWriteRowRequest) error {
	if err := checkKey(req.RowKey); err != nil {
		return err
	}
	if len(req.Rules) == 0 {
		return invalid("no rules")
	}
	if err := checkCount(len(req.Rules)); err != nil {
		return err
	}
	for i, rule := range req.Rules {
		if err := s.checkCell(rule.FamilyName, rule.ColumnQualifier, len(rule.GetAppendValue())); err != nil {
			return status.Errorf(status.Code(err), "rule %d: %s", i, status.Convert(err).Message())
		}
	}
	return nil
}

// checkFilter refuses an invalid filter even if no row matches. The emulator evaluates a filter
// only when it reads a row.
func checkFilter(f *bigtablepb.RowFilter) error {
	if size := proto.Size(f); size > maxFilter {
		return invalid("a filter of %d bytes, the limit is %d", size, maxFilter)
	}
	return checkNested(f, 0)
}

func checkNested(f *bigtablepb.RowFilter, depth int) error {
	var name string
	var parts []*bigtablepb.RowFilter
	switch f := f.GetFilter().(type) {
	case *bigtablepb.RowFilter_Chain_:
		name, parts = "chain", f.Chain.GetFilters()
	case *bigtablepb.RowFilter_Interleave_:
		name, parts = "interleave", f.Interleave.GetFilters()
	case *bigtablepb.RowFilter_Condition_:
		if f.Condition.GetPredicateFilter() == nil {
			return invalid("a condition without a predicate")
		}
		for _, part := range []*bigtablepb.RowFilter{f.Condition.PredicateFilter, f.Condition.TrueFilter, f.Condition.FalseFilter} {
			if err := checkNested(part, depth); err != nil {
				return err
			}
		}
		return nil
	default:
		return nil
	}
	if depth++; depth > maxNesting {
		return invalid("chains and interleaves %d deep, the limit is %d", depth, maxNesting)
	}
	if len(parts) < 2 {
		return invalid("a filter %s of %d parts, it takes two or more", name, len(parts))
	}
	for _, part := range parts {
		if err := checkNested(part, depth); err != nil {
			return err
		}
	}
	return nil
}
