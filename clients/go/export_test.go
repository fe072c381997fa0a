package lockward

import "time"

// SetIdleLimit sets how long an unused connection stays open.
func (c *Client) SetIdleLimit(limit time.Duration) { c.idleLimit = limit }

// RenewalPeriod returns the time from a grant to its first renewal. Its argument is the lease in milliseconds.
var RenewalPeriod = renewalPeriod
