package tapeserver

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// textCodec is gRPC's codec for protocol buffers. If a string of a request is not valid UTF-8, its
// error names the field; the error of the protobuf package does not.
type textCodec struct{ encoding.CodecV2 }

func newTextCodec() textCodec { return textCodec{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c textCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if l, ok := v.(*lenient); ok {
		l.err = c.Unmarshal(data, l.Message)
		return nil
	}
	err := c.CodecV2.Unmarshal(data, v)
	if m, ok := v.(proto.Message); ok && err != nil {
		if field := invalidText(data.Materialize(), m.ProtoReflect().Descriptor()); field != "" {
			return fmt.Errorf("field %s is not valid UTF-8", field)
		}
	}
	return err
}

// lenient is a message whose decoding never fails for gRPC: the error is stored. gRPC would send the
// error of a codec as INTERNAL before the method's handler can return another status.
type lenient struct {
	proto.Message
	err error
}

// decodeBeginEffect decodes a BeginEffect as decode does. A request that cannot be decoded is refused
// with the status after which clients do not act; see beginEffectStatus.
func decodeBeginEffect(decode func(any) error) func(any) error {
	return func(m any) error {
		l := &lenient{Message: m.(proto.Message)}
		if err := decode(l); err != nil {
			return err
		}
		if l.err != nil {
			return beginEffectStatus(malformed("request", "cannot be decoded: %v", l.err))
		}
		return nil
	}
}

// invalidText returns the name of the first field of an encoded message whose text is not valid
// UTF-8, such as "fence.owner"; "" if there is none.
func invalidText(b []byte, message protoreflect.MessageDescriptor) string {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return ""
		}
		value := b[:n]
		b = b[n:]
		field := message.Fields().ByNumber(number)
		if field == nil || kind != protowire.BytesType {
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		switch field.Kind() {
		case protoreflect.StringKind:
			if !utf8.Valid(content) {
				return string(field.Name())
			}
		case protoreflect.MessageKind: // includes entries of maps
			if inner := invalidText(content, field.Message()); inner != "" {
				return string(field.Name()) + "." + inner
			}
		}
	}
	return ""
}
