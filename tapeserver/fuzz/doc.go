// Package fuzz fuzzes the server's wire and what it reads from its store. It has tests only.
//
//   - FuzzCalls sends sequences of RPCs whose fields are valid, hostile, or taken from earlier
//     replies.
//   - FuzzMessages sends one RPC with arbitrary bytes as its message.
//   - FuzzStored damages one stored value of an agent's whole life, and then repeats that life.
//
// After each input the server has logged no error (a panic of a call is one), no call was answered
// with a status that stands for a fault of the server, and, where the store was not damaged,
// package audit finds no contradiction in it.
//
// go test runs the inputs in testdata and the seeds. make fuzz looks for new ones.
package fuzz
