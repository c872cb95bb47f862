package containers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// removeBound limits operations that take a moment on a healthy machine: 30 s.
const removeBound = 30 * time.Second

// owned returns the containers with an owner label, by container id: those of the given owner, or
// all if owner is "".
func owned(ctx context.Context, docker client.APIClient, owner string) (ownerByID map[string]string, err error) {
	label := ownerLabel
	if owner != "" {
		label += "=" + owner
	}
	list, err := docker.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: client.Filters{}.Add("label", label),
	})
	if err != nil {
		return nil, err
	}
	ownerByID = map[string]string{}
	for _, c := range list.Items {
		ownerByID[c.ID] = c.Labels[ownerLabel]
	}
	return ownerByID, nil
}

// sweep removes the containers whose owners are gone.
func sweep(ctx context.Context, docker client.APIClient) error {
	containers, err := owned(ctx, docker, "")
	if err != nil {
		return err
	}
	var failed []error
	for id, owner := range containers {
		if isGone(owner) {
			failed = append(failed, remove(ctx, docker, id))
		}
	}
	return errors.Join(failed...)
}

// remove ends a container and waits until it is gone, whichever process removes it.
func remove(ctx context.Context, docker client.APIClient, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeBound)
	defer cancel()
	_, err := docker.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil && !errdefs.IsConflict(err) { // another process is removing it
		return fmt.Errorf("remove container %.12s: %w", id, err)
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := docker.ContainerInspect(ctx, id, client.ContainerInspectOptions{}); errdefs.IsNotFound(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("container %.12s is still there: %w", id, errors.Join(ctx.Err(), err))
		case <-ticker.C:
		}
	}
}
