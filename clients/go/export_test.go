package lockward

import "time"

// SetIdleLimit sets how long an unused connection stays open.
func (c *Client) SetIdleLimit(limit time.Duration) { c.idleLimit = limit }

// RenewalPeriod is how long after a grant the client renews a lease, which is given in milliseconds.
var RenewalPeriod = renewalPeriod
