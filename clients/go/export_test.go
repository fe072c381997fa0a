package lockward

import "time"

// SetIdleLimit sets how long a connection stays open without use.
func (c *Client) SetIdleLimit(limit time.Duration) { c.idleLimit = limit }

// RenewalPeriod is how long after a grant a lease of so many milliseconds is renewed.
var RenewalPeriod = renewalPeriod
