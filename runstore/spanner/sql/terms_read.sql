-- terms_read returns the terms of a run's former grants, and what its row has of the last one.
--
-- @hash hash of the run's id, @run id of the run
SELECT h.Run, h.Token, h.GrantState, h.Owner, h.Reactor, h.Expires, h.Granted, h.Terms, h.GrantEnded
FROM Runs AS h
WHERE h.RunHash = @hash AND h.Run = @run AND h.Created IS NOT NULL
