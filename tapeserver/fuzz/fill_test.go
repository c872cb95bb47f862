package fuzz_test

import (
	"math"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// filler fills messages by an input. The input chooses each field's value from a pool of ordinary,
// hostile and known ones. Past its end the input consists of zeros, which leave fields unset.
type filler struct {
	input   []byte
	strings []string
	ints    []int64
}

func newFiller(input []byte) *filler {
	return &filler{
		input: input,
		strings: []string{"", "r", "a", "u", "s", "k", "driver:1", "driver:2", "{}", "null", `{"a":1}`, `"x"`, "[1", "\x00", "é/..%2f", "true", "event.kind == 'x'",
			strings.Repeat("y", 1<<11), strings.Repeat("z", 1<<17), strings.Repeat("[", 1<<10)},
		ints: []int64{0, 1, 2, -1, 1000, 60_000, 1 << 31, 1 << 53, math.MaxInt64, math.MinInt64},
	}
}

func (f *filler) next() int {
	if len(f.input) == 0 {
		return 0
	}
	b := f.input[0]
	f.input = f.input[1:]
	return int(b)
}

func (f *filler) ended() bool { return len(f.input) == 0 }

// message returns a filled message.
func (f *filler) message(d protoreflect.MessageDescriptor, depth int) protoreflect.Message {
	m := dynamicpb.NewMessage(d)
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		n := f.next()
		if n == 0 {
			continue
		}
		switch {
		case field.IsMap():
			entries := m.Mutable(field).Map()
			for range n % 3 {
				entries.Set(f.value(field.MapKey(), nil, depth).MapKey(), f.value(field.MapValue(), entries.NewValue, depth))
			}
		case field.IsList():
			list := m.Mutable(field).List()
			for range n % 4 {
				list.Append(f.value(field, list.NewElement, depth))
			}
		default:
			m.Set(field, f.value(field, func() protoreflect.Value { return m.NewField(field) }, depth))
		}
	}
	return m
}

func (f *filler) value(field protoreflect.FieldDescriptor, empty func() protoreflect.Value, depth int) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.MessageKind:
		if depth > 3 {
			return empty()
		}
		return protoreflect.ValueOfMessage(f.message(field.Message(), depth+1))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(f.strings[f.next()%len(f.strings)])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.strings[f.next()%len(f.strings)]))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.next()%12 - 1))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64([]float64{0, 1, 0.5, -1, 1e-300, 1e308, math.NaN(), math.Inf(1)}[f.next()%8])
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32([]float32{0, 1, -1, float32(math.NaN())}[f.next()%4])
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(f.ints[f.next()%len(f.ints)]))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(f.ints[f.next()%len(f.ints)]))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(f.ints[f.next()%len(f.ints)]))
	default:
		return protoreflect.ValueOfInt64(f.ints[f.next()%len(f.ints)])
	}
}

// learn adds the texts and numbers of a reply to the pools, so that later calls name what exists.
// Pools stay below 250 values, because one byte chooses.
func (f *filler) learn(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
		case field.IsList():
			for i := range min(v.List().Len(), 4) {
				f.learnValue(field, v.List().Get(i))
			}
		default:
			f.learnValue(field, v)
		}
		return true
	})
}

func (f *filler) learnValue(field protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch field.Kind() {
	case protoreflect.MessageKind:
		f.learn(v.Message())
	case protoreflect.StringKind:
		if len(f.strings) < 250 && v.String() != "" {
			f.strings = append(f.strings, v.String())
		}
	case protoreflect.Int64Kind:
		if len(f.ints) < 250 {
			f.ints = append(f.ints, v.Int())
		}
	}
}
