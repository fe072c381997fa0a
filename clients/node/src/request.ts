import type { Command } from "./adapters.js";

/** How long a server has to reply to a request that does not wait, in milliseconds. */
export const RESPONSE_LIMIT = 2_000;

export interface Request {
  readonly key: Buffer;
  /** The commands for an attempt that begins now. */
  commands(sent: number): Command[];
  /** No attempt begins later. Infinity: until no server has answered for as long as the patience. */
  readonly until: number;
  readonly patience: number;
  /** How long an attempt that begins now may take; RESPONSE_LIMIT if absent. */
  limit?(sent: number): number;
  /** Called when an attempt is sent: from then on the server may carry it out. */
  readonly onSend?: () => void;
  /** Called before each attempt, and with the error of one without a reply. What it throws ends the request. */
  readonly check?: (failure?: Error) => void;
  /** If present, the request has a dedicated connection. When the request is given up, this command is sent last on it. */
  readonly withdrawal?: Command;
  readonly signal?: AbortSignal | undefined;
  /** Whether the process may end meanwhile. */
  readonly isBackground?: boolean;
}

export interface Answer {
  readonly sent: number;
  readonly replies: unknown[];
  /** Whether an earlier attempt, whose reply was lost, may have been carried out. */
  readonly mayHaveRun: boolean;
}
