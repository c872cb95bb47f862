package spanner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloudspannerecosystem/memefish"
	"github.com/cloudspannerecosystem/memefish/ast"

	"github.com/tapestore/tapestore/runstore/spanner"
)

// The emulator is lenient about words that the service reserves; memefish is not.
func TestStatementsParse(t *testing.T) {
	t.Parallel()
	for name, text := range spanner.Statements() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parsed, err := memefish.ParseStatement(name, text)
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			switch parsed.(type) {
			case *ast.QueryStatement, *ast.Update:
			default:
				t.Errorf("is a %T", parsed)
			}
		})
	}
}

// TestGuardNumbersItsRuns checks that each run of a guard statement has parameters of its own.
func TestGuardNumbersItsRuns(t *testing.T) {
	t.Parallel()
	parts := strings.Split(spanner.Statements()["guard of three"], "UNION ALL")
	if len(parts) != 3 {
		t.Fatalf("%d parts, want 3", len(parts))
	}
	for n, part := range parts {
		for _, name := range []string{"@hash_%d", "@run_%d", "@keys_%d", "@callers_%d", "@id_%d", "@kind_%d", "\t%d AS Number"} {
			if !strings.Contains(part, fmt.Sprintf(name, n)) || strings.Contains(part, fmt.Sprintf(name, (n+1)%3)) {
				t.Errorf("part %d does not read %s alone:\n%s", n, fmt.Sprintf(name, n), part)
			}
		}
	}
}

// TestScansReadAllShards checks the number of shards that the files repeat.
func TestScansReadAllShards(t *testing.T) {
	t.Parallel()
	for _, text := range spanner.Scans() {
		if want := fmt.Sprintf("GENERATE_ARRAY(0, %d - 1)", spanner.Shards); !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// TestStatementFiles checks that each file of the folder sql is used and described. A missing file
// fails every test.
func TestStatementFiles(t *testing.T) {
	t.Parallel()
	for _, fault := range spanner.StatementFaults() {
		t.Error(fault)
	}
}

func TestMigrationsParse(t *testing.T) {
	t.Parallel()
	for version, statements := range spanner.Migrations() {
		for i, text := range statements {
			parsed, err := memefish.ParseDDL(fmt.Sprintf("%d/%d", version+1, i), text)
			if err != nil {
				t.Errorf("%v in\n%s", err, text)
				continue
			}
			switch ddl := parsed.(type) { // each can be repeated: several replicas may migrate at once
			case *ast.CreateTable:
				if !ddl.IfNotExists {
					t.Errorf("not IF NOT EXISTS:\n%s", text)
				}
			case *ast.CreateIndex:
				if !ddl.IfNotExists {
					t.Errorf("not IF NOT EXISTS:\n%s", text)
				}
			case *ast.AlterTable:
				if _, ok := ddl.TableAlteration.(*ast.AddRowDeletionPolicy); ok { // left out where it was executed
					continue
				}
				if add, ok := ddl.TableAlteration.(*ast.AddColumn); !ok || !add.IfNotExists {
					t.Errorf("not ADD COLUMN IF NOT EXISTS:\n%s", text)
				}
			case *ast.DropIndex:
				if !ddl.IfExists {
					t.Errorf("not IF EXISTS:\n%s", text)
				}
			case *ast.DropTable:
				if !ddl.IfExists {
					t.Errorf("not IF EXISTS:\n%s", text)
				}
			default:
				t.Errorf("a %T is not known to be repeatable:\n%s", parsed, text)
			}
		}
	}
}
