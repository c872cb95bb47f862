package adapter

import "context"

type operationKey struct{}

// withOperation returns the context of an operation.
func withOperation(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, operationKey{}, name)
}

// Operation returns the name of the operation that a request to the engine under ctx serves, or ""
// for a request of the adapter's background work. Interceptors of an engine's client use it, in
// tests and for metrics; package serving sends it to a server in gRPC metadata.
func Operation(ctx context.Context) string {
	name, _ := ctx.Value(operationKey{}).(string)
	return name
}
