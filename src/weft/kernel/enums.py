"""The closed sets of values that events and views use, with the seeds' own spellings."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, get_args


class EventClass(StrEnum):
    """What an event is: a wish, something seen, a change of state, or where something came from."""

    INTENT = "intent"
    OBSERVATION = "observation"
    TRANSITION = "transition"
    PROVENANCE = "provenance"


class ToolCallStatus(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELED = "canceled"
    INTERRUPTED = "interrupted"


class InterruptionReason(StrEnum):
    """Why a run was interrupted, such as a crash or a timeout."""

    CRASH = "crash"
    SHUTDOWN = "shutdown"
    CONTEXT_RESET = "context_reset"
    APPROVAL_DENIED = "approval_denied"
    TIMEOUT = "timeout"
    CANCELED = "canceled"
    SYSTEM_RESTART = "system_restart"


class ResourceKind(StrEnum):
    """What a resource is: a directory, a file, a uri, a volume, a container, an image."""

    DOCKER_VOLUME = "docker_volume"
    DOCKER_CONTAINER = "docker_container"
    DOCKER_IMAGE = "docker_image"
    DIRECTORY = "directory"
    FILE = "file"
    URI = "uri"


class ResourceLiveness(StrEnum):
    """Whether a resource was found alive when it was last looked at."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    DEAD = "dead"


class ResourceCapability(StrEnum):
    """What can be done with a resource: snapshot, restore, fork, share, migrate, checkpoint."""

    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    FORK = "fork"
    SHARE = "share"
    MIGRATE = "migrate"
    CHECKPOINT = "checkpoint"


class HandleCapability(StrEnum):
    """What can be done through a handle."""

    ATTACH = "attach"
    EXEC = "exec"
    KILL = "kill"
    LOGS = "logs"


class SubresourcePart(StrEnum):
    """As what a resource is a part of a container."""

    FILE_SYSTEM = "file_system"
    VOLUME = "volume"
    NETWORK = "network"


class OwnershipReason(StrEnum):
    """Why a resource got another owner, or none."""

    DECLARED = "declared"
    FORK = "fork"
    RESTORE = "restore"
    MIGRATE = "migrate"
    DISCARD = "discard"
    UNDO = "undo"


class SnapshotConsistency(StrEnum):
    """Whether a snapshot shows what a crash would have left, or what the application meant to keep."""

    CRASH_CONSISTENT = "crash_consistent"
    APP_CONSISTENT = "app_consistent"


class MountMode(StrEnum):
    """Whether a resource is attached or mounted to be read alone, or to be written."""

    RO = "ro"
    RW = "rw"


class VolumeMode(StrEnum):
    """What a fork does with a resource: keep, snapshot, discard."""

    KEEP = "keep"
    SNAPSHOT = "snapshot"
    DISCARD = "discard"


class SnapshotOutcome(StrEnum):
    """Whether a snapshot was taken."""

    OK = "ok"
    ERROR = "error"


class SnapshotState(StrEnum):
    """What became of a snapshot: wanted, taken, failed, or thrown away."""

    REQUESTED = "requested"
    OK = "ok"
    ERROR = "error"
    DISCARDED = "discarded"


class RestoreOutcome(StrEnum):
    """Whether a snapshot was restored, or cannot be."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    ERROR = "error"


class PolicyKind(StrEnum):
    ACTIVE = "active"
    PROPOSAL = "proposal"


class MessageRole(StrEnum):
    """Who speaks in a message: system, user, assistant, tool."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class MessageSource(StrEnum):
    """Who or what started a message that is not the assistant's."""

    HUMAN = "human"
    TRIGGER = "trigger"
    AGENT = "agent"
    WEBHOOK = "webhook"
    CRON = "cron"
    EVENT = "event"


class QueueMode(StrEnum):
    """How a message that finds its session at work waits, and how it enters a turn."""

    FOLLOWUP = "followup"
    """After the turn, one message a turn."""
    COLLECT = "collect"
    """After the turn, together with others that come within a short while: one turn for all of them."""
    INTERRUPT = "interrupt"
    """The turn is cut short; everything that waits and this message are the next turn."""
    STEER = "steer"
    """Into the turn, with the next request to the model; where none follows, as a followup."""


class InboxState(StrEnum):
    """What became of a message in an inbox."""

    QUEUED = "queued"
    TAKEN = "taken"
    """A turn that is not over yet has it."""
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    DEAD = "dead"
    """Its turn failed; a person must look at it."""
    RESENT = "resent"
    """It was dead, and went again under another id."""


class OpenRunState(StrEnum):
    """Whether a turn that a broker runs can go on."""

    RUNNING = "running"
    PARKED = "parked"
    """It waits for somebody, or for a time."""


class RunReason(StrEnum):
    """Why a run began."""

    USER = "user"
    SCHEDULE = "schedule"
    SUBAGENT = "subagent"


class RunExit(StrEnum):
    """How a run ended: success or error."""

    SUCCESS = "success"
    ERROR = "error"


class TurnType(StrEnum):
    """Whether a turn is a normal one or a compaction."""

    NORMAL = "normal"
    COMPACTION = "compaction"


class TurnStatus(StrEnum):
    """Whether a turn is pending, streaming, completed or failed."""

    PENDING = "pending"
    STREAMING = "streaming"
    COMPLETED = "completed"
    FAILED = "failed"


class AgentRole(StrEnum):
    """What an agent is in a turn: manager, worker or unified."""

    MANAGER = "manager"
    WORKER = "worker"
    UNIFIED = "unified"


class WorkerAnswerState(StrEnum):
    """How the answer of a worker came to its spawner: not yet, with the result of a call, or as a message."""

    READY = "ready"
    AWAITED = "awaited"
    SENT = "sent"


class CallState(StrEnum):
    """The agents ledger's status of a tool call; `ToolCallStatus` says how it ended."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class SessionStatus(StrEnum):
    """Active, archived or deleted."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    DELETED = "deleted"


class SessionLifecycle(StrEnum):
    CREATED = "created"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"


class TaskStatus(StrEnum):
    """How far a subagent is: pending, running, completed or failed."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class MoveReason(StrEnum):
    """Why a session's head moved; `fork` and `create` rows come from the events of that name."""

    TURN = "turn"
    MOVE = "move"
    RESET = "reset"
    RESTORE = "restore"
    FORK = "fork"
    SETTLE = "settle"


class AliasReason(StrEnum):
    """Why an alias was added."""

    IDENTITY_PROMOTION = "identity_promotion"
    IDENTITY_MERGE = "identity_merge"
    MANUAL = "manual"


class CompactionType(StrEnum):
    """How a compaction was made: summary, sliding window or selective. Strategies of others have names of their own."""

    SUMMARY = "summary"
    SLIDING_WINDOW = "sliding_window"
    SELECTIVE = "selective"


class CompactionTrigger(StrEnum):
    """What made somebody compact: the context limit, a person, a period, an overflow."""

    CONTEXT_LIMIT = "context_limit"
    MANUAL = "manual"
    PERIODIC = "periodic"
    OVERFLOW_RECOVERY = "overflow_recovery"


class FileKind(StrEnum):
    """What a message did with a file: read, written, referenced or attached."""

    READ = "read"
    WRITTEN = "written"
    REFERENCED = "referenced"
    ATTACHED = "attached"


class LintSeverity(StrEnum):
    """How severe a linter's note is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    HINT = "hint"


class LinkReason(StrEnum):
    """Why a turn is linked to another: continuation, subagent, fork, resumed, cherry-pick or summary."""

    CONTINUATION = "continuation"
    SUBAGENT = "subagent"
    FORK = "fork"
    RESUMED = "resumed"
    """What a session file that Weft wrote calls the parent: the child is the name that an import gives it."""
    CHERRY_PICK = "cherry_pick"
    SUMMARY = "summary"


class SupersedeReason(StrEnum):
    """Why another version of an imported turn became current."""

    REREAD = "reread"
    REMAP = "remap"


class ImageDetail(StrEnum):
    """How closely a model is to look at an image."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"


class Decision(StrEnum):
    """What may be done with a tool call. After `deny_continue` the model is told and the turn goes on; `deny_abort`
    cuts it short."""

    ALLOW = "allow"
    ASK = "ask"
    DENY_CONTINUE = "deny_continue"
    DENY_ABORT = "deny_abort"


class DecisionSource(StrEnum):
    """What decided on a tool call: its arguments fit no tool (`arguments`), the rights of the turn, the approval
    policy, a person's grant for this call or for the session, strangers' words in the context of a tool that reaches
    outside (`provenance`)."""

    ARGUMENTS = "arguments"
    PERMISSION = "permission"
    POLICY = "policy"
    GRANT = "grant"
    SESSION_GRANT = "session_grant"
    PROVENANCE = "provenance"


class ApprovalState(StrEnum):
    """What became of a request to a person. `void`: the call was over before anybody answered, or before it was
    run."""

    OPEN = "open"
    GRANTED = "granted"
    DENIED = "denied"
    VOID = "void"


class PolicyState(StrEnum):
    """How far an approval policy has come; of those that were active, `replaced` ones may be taken up again."""

    PROPOSAL = "proposal"
    ACTIVE = "active"
    REPLACED = "replaced"
    REJECTED = "rejected"


class GrantScope(StrEnum):
    """How far a person's yes reaches: this call, the same use of the tool for the rest of the session, or this call
    with a rule proposed for the policy."""

    ONCE = "once"
    SESSION = "session"
    RULE = "rule"


class ProgramKind(StrEnum):
    """The kinds of program."""

    CODE = "code"
    PROVIDER = "provider"
    MODEL = "model"
    SESSION = "session"
    AGENT = "agent"
    TASK = "task"
    INFORMATION = "information"
    HUMAN = "human"
    TOOLSET = "toolset"
    TRIGGER = "trigger"


class InfoType(StrEnum):
    """The types of information programs."""

    FACT = "fact"
    SCHEMA = "schema"
    WORKFLOW = "workflow"
    PATTERN = "pattern"


class ReferenceField(StrEnum):
    """As what one program's configuration names another."""

    PROVIDER = "provider"
    DEFAULT_MODEL = "default_model"
    OWNER = "owner"
    TOOL = "tool"
    ASSIGNEE = "assignee"
    DEPENDENCY = "dependency"
    SCHEMA = "schema"
    SOURCE = "source"
    FALLBACK = "fallback"


class CriterionType(StrEnum):
    """The kinds of success criterion of a task."""

    FILE_EXISTS = "file_exists"
    WORD_COUNT = "word_count"
    COMMAND = "command"
    JSON_SCHEMA = "json_schema"
    CONTAINS = "contains"


class Presence(StrEnum):
    """Whether a person is available, busy, away or offline."""

    AVAILABLE = "available"
    BUSY = "busy"
    AWAY = "away"
    OFFLINE = "offline"


class ParticipantKind(StrEnum):
    """Who takes part in a conversation, and whom a mention names."""

    USER = "user"
    AGENT = "agent"


class ParticipantStatus(StrEnum):
    """Whether an agent has something to answer."""

    INACTIVE = "inactive"
    THINKING = "thinking"


class RoomMessageKind(StrEnum):
    """Who speaks in a conversation."""

    PARTICIPANT = "participant"
    SYSTEM = "system"


class RoomHistory(StrEnum):
    """What those read of a conversation who join it: what is said from then on, or all of it."""

    JOINED = "joined"
    ALL = "all"


class RoomStatus(StrEnum):
    """Whether a conversation takes messages."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class RoomNotice(StrEnum):
    """What a message of the system is about."""

    JOINED = "joined"
    LEFT = "left"
    REMOVED = "removed"
    RETITLED = "retitled"
    INVITED = "invited"
    ERROR = "error"
    LIMIT = "limit"
    PRIVATE = "private"
    ABSENT = "absent"
    FORKED = "forked"


class InvitationState(StrEnum):
    """What became of an invitation."""

    OPEN = "open"
    CONFIRMED = "confirmed"
    DECLINED = "declined"


class AgentKind(StrEnum):
    """Who made an agent: somebody, or the system."""

    USER_AGENT = "user_agent"
    SYSTEM_AGENT = "system_agent"


class SystemAgentKind(StrEnum):
    """What a system agent is for."""

    TRIAGE = "triage"


# --- The words of which one is chosen in the configuration of a trigger.

WebhookScheme = Literal["github", "stripe", "slack", "standard"]
WEBHOOK_SCHEMES: tuple[WebhookScheme, ...] = get_args(WebhookScheme)
"""How a webhook is signed."""
MissedChoice = Literal["report", "latest", "all"]
MISSED_CHOICES: tuple[MissedChoice, ...] = get_args(MissedChoice)
"""What is done with missed times; the first where nothing is said."""
SessionPeriod = Literal["yesterday", "today", "week"]
SESSION_PERIODS: tuple[SessionPeriod, ...] = get_args(SessionPeriod)
"""Whose sessions can be put into a message."""
SCHEDULED = ("cron", "interval", "at")
"""What sets a trigger off by the clock."""
