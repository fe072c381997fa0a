package lockward

import "time"

// SetIdleLimit sets how long a connection stays open without use.
func (c *Client) SetIdleLimit(limit time.Duration) { c.idleLimit = limit }

// RenewalPeriod returns the time from a grant to its first renewal, for a lease in milliseconds.
var RenewalPeriod = renewalPeriod
