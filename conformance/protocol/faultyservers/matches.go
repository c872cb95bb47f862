package faultyservers

import (
	"hash/crc32"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func matchServers() []Server {
	return []Server{
		{
			Name: "matches-lost", Case: "T7/each-entry-is-one-task",
			Breaks: "It moves a reaction's cursor before it stores the tasks, and crashes in between, so some entries have no task.",
			fault: func() fault {
				return overTasks(func(tasks []*tapepb.Task) (kept []*tapepb.Task) {
					for _, task := range tasks {
						if crc32.ChecksumIEEE([]byte(task.GetSourceRunId()))%4 > 0 {
							kept = append(kept, task)
						}
					}
					return kept
				})
			},
		},
		{
			Name: "matches-repeated", Case: "T7/each-entry-is-one-task",
			Breaks: "It stores tasks before it moves the reaction's cursor, so a matcher that takes over creates some of them again.",
			fault: func() fault {
				return overTasks(func(tasks []*tapepb.Task) (all []*tapepb.Task) {
					for _, task := range tasks {
						all = append(all, task)
						if crc32.ChecksumIEEE([]byte(task.GetSourceRunId()))%4 == 0 {
							again := proto.CloneOf(task)
							again.TaskId += again2
							all = append(all, again)
						}
					}
					return all
				})
			},
		},
		{
			Name: "tasks-claimed-on-a-look", Case: "T7/each-entry-is-one-task",
			Breaks: "It lists the tasks that are due and claims them in a second step, so several workers get one task.",
			fault:  func() fault { return fault{unary: claimTasksOnLook} },
		},
		{
			Name: "no-runs-once-workers-ask", Case: "T7/each-entry-is-one-task",
			Breaks: "It refuses to begin runs once workers ask for tasks, and has no tasks for them, so a worker that waits for one never ends.",
			fault: func() fault {
				var asked atomic.Bool
				return fault{unary: func(c call) (proto.Message, error) {
					switch c.req.(type) {
					case *tapepb.ClaimTasksRequest:
						asked.Store(true)
						return &tapepb.ClaimTasksResponse{}, nil
					case *tapepb.BeginRunRequest:
						if asked.Load() {
							return nil, status.Error(codes.ResourceExhausted, "too many runs")
						}
					}
					return c.forward(c.req)
				}}
			},
		},
		{
			Name: "claims-of-a-former-owner", Case: "tasks/71-stale-claim",
			Breaks: "It accepts reports on a task from any caller, so an owner whose claim has expired takes the task from its successor.",
			fault: func() fault {
				return fault{unary: func(c call) (proto.Message, error) {
					if m, ok := c.req.(*tapepb.NackTaskRequest); ok && m.GetOwner() == "a" {
						m.Owner = "b"
					}
					return c.forward(c.req)
				}}
			},
		},
	}
}

// again2 is the suffix of the task ids that the server matches-repeated invents.
const again2 = "-again"

// overTasks returns a fault that changes the tasks in replies. Invented tasks can be completed.
func overTasks(change func([]*tapepb.Task) []*tapepb.Task) fault {
	return fault{unary: func(c call) (proto.Message, error) {
		if m, ok := c.req.(*tapepb.CompleteTaskRequest); ok && len(m.GetTaskId()) > len(again2) && m.GetTaskId()[len(m.GetTaskId())-len(again2):] == again2 {
			return &tapepb.CompleteTaskResponse{Task: &tapepb.Task{TaskId: m.GetTaskId(), Status: tapepb.TaskStatus_TASK_STATUS_DONE}}, nil
		}
		answer, err := c.forward(c.req)
		switch a := answer.(type) {
		case *tapepb.ClaimTasksResponse:
			a.Tasks = change(a.GetTasks())
		case *tapepb.ListTasksResponse:
			a.Tasks = change(a.GetTasks())
		}
		return answer, err
	}}
}

// claimTasksOnLook returns the tasks that were due before the call, whether the caller or another
// worker claims them.
func claimTasksOnLook(c call) (proto.Message, error) {
	switch m := c.req.(type) {
	case *tapepb.ClaimTasksRequest:
		look, err := c.server.ListTasks(c.ctx, &tapepb.ListTasksRequest{ReactionId: m.GetReactionId(), Status: tapepb.TaskStatus_TASK_STATUS_PENDING, Limit: m.GetMax()})
		if err != nil {
			return nil, err
		}
		if _, err := c.server.ClaimTasks(c.ctx, m); err != nil {
			return nil, err
		}
		for _, task := range look.GetTasks() {
			task.Status, task.LeaseOwner, task.Attempts = tapepb.TaskStatus_TASK_STATUS_CLAIMED, m.GetOwner(), 1
		}
		return &tapepb.ClaimTasksResponse{Tasks: look.GetTasks()}, nil
	case *tapepb.CompleteTaskRequest: // a worker whose task another worker completed sees no error
		answer, err := c.forward(m)
		if err != nil {
			return &tapepb.CompleteTaskResponse{Task: &tapepb.Task{TaskId: m.GetTaskId(), Status: tapepb.TaskStatus_TASK_STATUS_DONE}}, nil
		}
		return answer, nil
	}
	return c.forward(c.req)
}
