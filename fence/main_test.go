package fence_test

import (
	"fmt"
	"os"
	"testing"

	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := postgresemulator.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
