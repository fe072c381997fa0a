// The part of ava that node-redlock's tests use, implemented with node:test.

import assert from "node:assert/strict";
import { before, test } from "node:test";

const assertions = { is: assert.strictEqual, not: assert.notStrictEqual, assert: assert.ok, fail: assert.fail };

function ava(name: string, body: (t: typeof assertions) => Promise<void>): void {
  test(name, () => body(assertions));
}

export default Object.assign(ava, { before: (body: () => Promise<void>) => before(body) });
