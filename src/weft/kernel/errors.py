"""Every refusal of Weft, as one tree; the branches say who must act.

WeftError
├── InvalidInput        the caller passed something that has no single form: mend the value
├── LedgerError         the request does not fit the ledger's state: read again and decide
│   ├── NotFound
│   ├── NotApplicable   the parts do not fit together, or not at this moment
│   └── Conflict        somebody else was first, or something is in the way
├── StoreError          the machine or the file is in the way: mend the environment
│   ├── StoreFailed     the engine refused a read or a write: nothing of it was stored, or nobody knows
│   └── Damaged         what is stored is not what was written: restore or recover
└── OutsideError        something outside was asked for and not had; `acts` says who must act
    ├── RequestRefused  you: a provider refused the request as it is
    └── ProviderFailed  the provider: it failed, was not reached, or answered with nonsense

An error says what to do: `Advice` is an action code with arguments, which each surface phrases. Passwords
and keys in addresses are hidden before a text is shown or raised. Each class has a published code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

# --- Passwords and keys in addresses, hidden before a text is shown, logged or raised.

HIDDEN = "***"
_PLAIN_USER = re.compile(r"[A-Za-z0-9_.~-]{1,19}")
"""Longer ones may be tokens: `https://ghp_…@host`."""
_SPACES = re.compile(r"(\s+)")
_END = re.compile(r"@(?![{(])")
"""`main@{1}` and `@(id)` are no addresses of servers."""
_NAMES = "password|passwd|passphrase|pwd|secret|token|api[_-]?key|client_key|server_key"
_OPTION = re.compile(rf"((?:{_NAMES})(?:=|%3D))[^\s&'\"]+", re.IGNORECASE)
_ARGUMENT = re.compile(rf"(--?(?:pass|{_NAMES})[ =]+)[^\s'\"]+", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """The same text with `***` for everything that may be a password or a key of an address in it."""
    if "@" in text:
        text = "".join(map(_hidden_word, _SPACES.split(text)))
    if "=" in text or "%" in text:
        text = _OPTION.sub(rf"\g<1>{HIDDEN}", text)
    return _ARGUMENT.sub(rf"\g<1>{HIDDEN}", text) if "-" in text else text


def hidden_address(address: str) -> str:
    """One address, malformed or not, as it may be shown: spaces in it are part of it."""
    return _hidden_word(without_credentials(address))


def _hidden_word(word: str) -> str:
    ends = [end.start() for end in _END.finditer(word)]
    if not ends:
        return word
    before, after = word[: ends[-1]], word[ends[-1] :]
    scheme, slashes, user = before.partition("://")
    if slashes:
        return word if _PLAIN_USER.fullmatch(user) else f"{scheme}://{HIDDEN}{after}"
    name, colon, _ = before.partition(":")
    return f"{name}:{HIDDEN}{after}" if colon else word


# --- What to do about a refusal or a finding: an action code with arguments, which each surface phrases in its own
# way.


class Action(StrEnum):
    """A code, and the sentence that stands for it where no surface has one of its own."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> Action:
        action = str.__new__(cls, code)
        action._value_, action.sentence = code, sentence
        return action

    def of(self, **arguments: str | int) -> Advice:
        """This action with the values that its sentence names."""
        return Advice(self, arguments)

    OTHER = "other", ""

    # values
    CORRECT_VALUE = "correct_value", "mend the value and try again; nothing was recorded"
    KEEP_TO_JSON = (
        "keep_to_json",
        "keep to JSON: finite numbers, text without lone surrogates, names that are text, no value inside itself",
    )
    WRITE_JSON = "write_json", "write it as one JSON value in UTF-8"
    REFER_TO_FILE = "refer_to_file", "keep it as a file beside the ledger and record a reference to it"
    EXPORT_FACTS_AGAIN = (
        "export_facts_again",
        "export the facts again from where they come; what came before this batch stays",
    )
    ASK_FOR_BUNDLE_AGAIN = "ask_for_bundle_again", "ask for it again; what it says cannot be relied upon"
    READ_PROGRAM_SETTINGS = (
        "read_program_settings",
        "docs/agents.md says what each kind of program is configured by",
    )
    SET_VARIABLE = "set_variable", "set {variable} and try again"
    CORRECT_VALUE_OR_SCHEMA = "correct_value_or_schema", "mend the value, or the schema"
    PASS_MESSAGE = "pass_message", "give it as message"
    PASS_TEXT = "pass_text", "give its text"
    FETCH_MODEL = "fetch_model", "fetch {model} with fetch_model"
    SET_BASE_URL = "set_base_url", "give provider {provider} its server as base_url"
    CHOOSE_ONE_KEY_SOURCE = "choose_one_key_source", "give env or command, not both"
    READ_HELP = "read_help", "read how {command} is used"

    # names and lists
    LIST_HISTORY = "list_history", "list the sessions, or the turns of one, to see what there is"
    LIST_SESSIONS = "list_sessions", "list the sessions"
    CHOOSE_NEAR_SESSION = "choose_near_session", "did you mean {names}?"
    LIST_PERSONAS = "list_personas", "list the sessions: each says which persona it has"
    LIST_KEYS = "list_keys", "list the keys that there are"
    LIST_ERASURES = "list_erasures", "the tombstones say who erased what, when and why"
    LIST_PROGRAMS = "list_programs", "list the programs to see what there is"
    LIST_VERSIONS = "list_versions", "list the program's history"
    LIST_REQUESTS = "list_requests", "list the requests"
    CHECK_ADDRESS = "check_address", "check the address of the other ledger"
    RECONSIDER_PENDING = "reconsider_pending", "list what was decided, and let it wait again"
    LIST_PENDING = "list_pending", "list what other ledgers decided and nobody here has taken over"
    LIST_REMOTES = "list_remotes", "list the remotes, or add one"
    LIST_SECRETS = "list_secrets", "list the secrets that were found"
    LIST_CREDENTIALS = "list_credentials", "list the credentials, or add one that says where its key is"
    LIST_ALL_PROBLEMS = "list_all_problems", "verify lists all of them"
    FIND_REFUSED_REPLICA = "find_refused_replica", "the refusal of a pull or a push names the replica it means"
    USE_LONGER_ID = "use_longer_id", "type more characters of it"
    CHOOSE_ANOTHER_NAME = "choose_another_name", "choose another name"
    NAME_KEY = "name_key", "give it a name"
    CHOOSE_ANOTHER_KEY_NAME = "choose_another_key_name", "give it another name"
    CREATE_KEY = "create_key", "create one"
    EXPORT_PUBLIC_KEY = "export_public_key", "a public key is one line, as exporting a key gives it"

    # sessions and turns
    READ_AGAIN = "read_again", "read the ledger again and decide anew"
    READ_SESSION_AGAIN = "read_session_again", "read the session again and decide with its new head"
    WAIT_OR_FORK = "wait_or_fork", "wait for that turn to finish, or fork the session and go on there"
    FREE_SESSION = (
        "free_session",
        "wait for it, or interrupt session {session!r}; the inbox lists what waits there, and can drop a message",
    )
    SERVE_TURN = (
        "serve_turn",
        "run a broker that can, or interrupt session {session!r}: the next broker that goes on with the turn ends it",
    )
    SERVE_MESSAGE = "serve_message", "let its sender or a broker answer it, or cancel message {message!r}"
    UNDO_WITHOUT_FILES = "undo_without_files", "undo the conversation of session {session!r} alone: its files stay"
    WAIT_FOR_INBOX = "wait_for_inbox", "wait until some of them are answered, or cancel some"
    REDO_TURN = "redo_turn", "all of it was undone: redo the last undo of session {session!r}"
    LIST_INBOX = "list_inbox", "list the messages that wait"
    LIST_ROOMS = "list_rooms", "list the rooms that you are in"
    ADD_AGENT = "add_agent", "it is an agent: add it to the room"
    INVITE_PERSON = "invite_person", "that is a person: let them in"
    NAME_WHO_ACTS = "name_who_acts", "who acts is a person, an agent, or 'local', whoever opened the ledger"
    ANSWER_APPROVAL = "answer_approval", "grant or deny approval {approval}, or send with approve="
    ASK_OTHERWISE = "ask_otherwise", "ask in other words, for a simpler type, or another model"
    LIST_APPROVALS = "list_approvals", "list the calls that wait for a person"
    LIST_TOOLSETS = "list_toolsets", "list the toolsets"
    LIST_POLICIES = "list_policies", "list the approval policies"
    LIST_RESOURCES = "list_resources", "list the resources"
    RECONCILE_RESOURCES = "reconcile_resources", "carry out what is wanted of resources"
    NAME_A_NODE = "name_a_node", "name a turn, a session, a program, a resource, a policy or an event"
    INTERRUPT_SESSION = "interrupt_session", "interrupt session {session!r} to end its turn"
    BEGIN_TURN_AFTER_LOSS = (
        "begin_turn_after_loss",
        "begin a new turn; what was recorded until then is kept in the failed one",
    )
    BEGIN_TURN = "begin_turn", "begin a new turn"
    REPEAT_COMMAND_OR_CHANGE_KEY = (
        "repeat_command_or_change_key",
        "give another key, or repeat the command that it was first given with",
    )
    TRY_AGAIN_WITH_NEW_ID = (
        "try_again_with_new_id",
        "try again; should it stay so, give the ledger better randomness",
    )
    COMPARE_BOTH = "compare_both", "look at what there is, and name others"
    RESET_HEAD_ALONE = "reset_head_alone", "reset the head of session {session!r}: its files stay"
    CHECK_OUT_BESIDE = "check_out_beside", "check the files of {rev!r} out beside"
    CREATE_SESSION = "create_session", "call create_session"
    RESUME_SESSION = "resume_session", "resume session {session!r}: it goes on then"
    RESTORE_SESSION = "restore_session", "restore session {session!r}"
    SET_SESSION_MODEL = (
        "set_session_model",
        "make a model, then configure session {session!r} with it, or name one for this message",
    )
    SUMMARIZE_BRANCH = "summarize_branch", "bring a summary of the branch instead"
    NAME_TURN_OF_THREAD = "name_turn_of_thread", "name a turn of that thread"
    NAME_COMPACTION = "name_compaction", "name a turn that is a compaction"
    NAME_ONE_BRANCH = "name_one_branch", "name the turn to settle on: {branches}"
    CHOOSE_OWN_BRANCH = "choose_own_branch", "choose our own branch"

    # erasing, bundles, exports
    PLAN_ERASURE_AGAIN = "plan_erasure_again", "plan it again and look at what would go"
    FINISH_ERASURE = "finish_erasure", "close what has it open, then finish the erasure"
    REVIEW_ERASURES = "review_erasures", "look at the pending erasures, then apply them"
    WITHHOLD_MORE_OR_FORCE = "withhold_more_or_force", "withhold those places too, or force it"
    CHOOSE_ANOTHER_FILE_OR_FORCE = "choose_another_file_or_force", "choose another file, or replace this one with force"

    MIGRATE_RESOURCE = (
        "migrate_resource",
        "migrate resource {resource!r} to session {session!r}, or let it work in another folder",
    )

    # programs
    COMPLETE_MISSING_PARTS = "complete_missing_parts", "see to what is missing, then complete it again"
    READ_PROGRAM_AGAIN = "read_program_again", "read the program again and decide with its new configuration"
    USE_LEGAL_STEP = "use_legal_step", "it can {steps}"
    NO_NEXT_STEP = "no_next_step", "nothing follows it"
    PUBLISH_PROGRAM = "publish_program", "publish {program!r} to put it in use"
    VALIDATE_INFORMATION = "validate_information", "validate {program!r} to put it in use"
    TAKE_OVER_PROGRAM = (
        "take_over_program",
        "look at what is pending of {program!r}, then take it over, or configure it yourself",
    )
    SET_AS_OWNER = (
        "set_as_owner",
        "the ledger's owner configures {program!r} with {field} again, or without it",
    )
    WAIT_OR_RESET_AGENT = "wait_or_reset_agent", "wait until it is idle, or reset agent {agent!r}"
    WAIT_FOR_ANSWER_OR_RESET_AGENT = (
        "wait_for_answer_or_reset_agent",
        "wait until it has answered; if nobody is at it any more, reset agent {agent!r}",
    )
    WAIT_OR_RESET_ABANDONED_AGENT = (
        "wait_or_reset_abandoned_agent",
        "wait until it is done; if nobody is at it any more, reset it",
    )
    RESUME_WORK = "resume_work", "run task {task!r} again: its agent goes on then"
    RESUME_AGENT = "resume_agent", "resume agent {agent!r}: it goes on then"
    RESET_AGENT = "reset_agent", "reset agent {agent!r}: it is idle then"
    SET_AGENT_MODEL = "set_agent_model", "make a model, then configure agent {agent!r} with it"
    ASSIGN_TASK = "assign_task", "assign task {task!r} to somebody first"
    READ_REQUEST = "read_request", "it is kept among the requests of {human!r}"
    READ_REQUEST_AFTER = "read_request_after", "{hint}; it is kept among the requests of {human!r}"
    EMBED_NODE = "embed_node", "embed {node!r} first"
    FORGET_VECTORS = "forget_vectors", "forget the vectors of this model first"
    REQUEST_RIGHT = (
        "request_right",
        "ask somebody who has the right, or have it given to every one in the chain",
    )
    GET_TOKEN = "get_token", "ask whoever gave it for a new token"

    # the ledger's file or server
    CHECK_PATH = "check_path", "check the path and its permissions"
    FREE_SPACE_THERE = "free_space_there", "free space there, or write to another place"
    EXAMINE_LEDGER = "examine_ledger", "examine the ledger: it explains what is wrong and what to do"
    EXAMINE_FULLY = "examine_fully", "examine the ledger with full=True"
    EXAMINE_OR_RECOVER = (
        "examine_or_recover",
        "examine the ledger; restore a backup, or salvage what verifies",
    )
    RESTORE_OR_SALVAGE = (
        "restore_or_salvage",
        "put a backup in its place, or salvage what still verifies",
    )
    RESTORE_BACKUP = "restore_backup", "put a backup in its place"
    NAME_ANOTHER_OR_RESTORE = "name_another_or_restore", "name another ledger, or put a backup in its place"
    COPY_BACKUP = "copy_backup", "copy a backup to a new ledger"
    COPY_UNREADABLE_SERVER = (
        "copy_unreadable_server",
        "salvaging is for files; a server restores what it was told to keep, and a copy reads what can be read",
    )
    CHOOSE_NEW_FILE = "choose_new_file", "give the path of a new file; a copy goes to another server or schema"
    CREATE_LEDGER_ELSEWHERE = "create_ledger_elsewhere", "name a file that does not exist yet, or another ledger"
    IMPORT_OR_CREATE_LEDGER = "import_or_create_ledger", "import sessions, which makes a ledger, or create an empty one"
    CREATE_OR_NAME_LEDGER = "create_or_name_ledger", "create one at {path}, or name another"
    NAME_ANOTHER_LEDGER = "name_another_ledger", "name another ledger"
    UPGRADE_LEDGER = "upgrade_ledger", "open it for writing once, which upgrades it"
    UPGRADE_WEFT = "upgrade_weft", "upgrade weft, then open it again"
    UPGRADE_AFTER_BACKUP = "upgrade_after_backup", "make a backup, then open it for writing"
    OPEN_TO_UPGRADE = "open_to_upgrade", "open it for writing: that upgrades it"
    REPEAT_COPY = "repeat_copy", "run the same copy again; it goes on there"
    OPEN_WHERE_IT_IS = "open_where_it_is", "put the file back or open it where it is now, then record again"
    REMOVE_OBJECTS = "remove_objects", "have them removed from the schema, or copy a backup to a new ledger"
    KEEP_ONE_NAME = "keep_one_name", "remove the other names, or make a copy of the file and open that"
    STOP_OTHER_PROGRAM = "stop_other_program", "end it, then try again"
    OPEN_FOR_WRITING = "open_for_writing", "open it for writing, or check the file's permissions"
    USE_LOCAL_DISK = "use_local_disk", "put the ledger on a local disk that SQLite can lock and sync"
    USE_SUPPORTED_PLACE = (
        "use_supported_place",
        "do it where it is supported: a local file on Linux or macOS, or PostgreSQL",
    )
    FREE_SPACE = "free_space", "free space or mend the disk, then try again; nothing was acknowledged"
    LOOK_BEFORE_RETRY = (
        "look_before_retry",
        "when the server is back, look whether it is there before you try again",
    )
    IMPORT_FACTS_AGAIN = "import_facts_again", "import the facts again from a ledger that has it"
    IMPORT_MISSING_FACTS = "import_missing_facts", "import the facts, if another ledger has them"
    ACCEPT_LOSS = "accept_loss", "put the newer copy back, or accept the loss"
    REBUILD_VIEWS = "rebuild_views", "rebuild the views"
    VERIFY_AND_REBUILD = "verify_and_rebuild", "verify the ledger, then rebuild the views"
    VERIFY_REBUILD_EXAMINE = (
        "verify_rebuild_examine",
        "verify the ledger, then rebuild the views; if that does not mend it, examine it",
    )
    REPAIR_FACTS_THEN_REBUILD = (
        "repair_facts_then_rebuild",
        "mend the facts first; if they verify, rebuild the views",
    )
    SCAN_SECRETS_AGAIN = "scan_secrets_again", "look for secrets in everything again"
    IMPORT_AGAIN = "import_again", "import again"
    IMPORT_REST = "import_rest", "import the rest"

    # other ledgers
    REPAIR_OTHER_LEDGER = "repair_other_ledger", "mend it there, then sync again"
    RENEW_BOTH_REPLICAS = (
        "renew_both_replicas",
        "one of them is a copy made behind Weft's back: give both a new replica id, then sync again",
    )
    RENEW_COPY_REPLICA = (
        "renew_copy_replica",
        "one is a copy of the other, or they are one and the same; a copy needs a replica id of its own",
    )
    CHECK_PROTOCOL_VERSION = (
        "check_protocol_version",
        "is the other side a weft that speaks the same version of the protocol?",
    )
    CHECK_OTHER_SHELL = (
        "check_other_shell",
        "is it a weft of this version, and does the shell there print nothing of its own?",
    )
    REPIN_REMOTE = (
        "repin_remote",
        "if another ledger is meant to be there now, accept it; nothing was taken from it or sent to it",
    )
    SYNC_AGAIN = "sync_again", "run it again: it goes on where it was cut"
    TRUST_LEDGER = "trust_ledger", "look at what {ledger} would do, and trust it if it is yours"
    CLONE_ELSEWHERE_OR_PULL = "clone_elsewhere_or_pull", "clone to a new place, or add it as a remote and pull"
    CLONE_WITHOUT_SECRET = "clone_without_secret", "sync without the import secret"

    # keys, servers and models
    CORRECT_REQUEST = "correct_request", "mend what is asked for, then try again"
    PROVIDE_CREDENTIAL = (
        "provide_credential",
        "give it to whoever acts, or name a credential of the server that is asked",
    )
    ALLOW_VARIABLE = (
        "allow_variable",
        "if that server may have it, add a credential for {variable} and the origin {origin}",
    )
    CORRECT_CODE = "correct_code", "mend the program; what it printed is told beside the error"
    NAME_SERVER_URL = (
        "name_server_url",
        "name the server by the URL that is meant; docs/models.md tells which addresses may be reached",
    )
    CORRECT_MODEL_REQUEST = (
        "correct_model_request",
        "mend the request or the model's settings; trying again will not help",
    )
    CHECK_CREDENTIAL = "check_credential", "check the key itself, where it is read from and what it may be used for"
    CHECK_MODEL_NAME = "check_model_name", "check the model's name and the provider's URL"
    CHECK_BASE_URL = "check_base_url", "check the base URL of the provider {provider}; many end with /v1"
    COMPACT_SESSION = "compact_session", "compact the session, or use a model with a larger context"
    RAISE_LIMIT = "raise_limit", "allow more, or ask for less"
    RETRY_LATER = "retry_later", "try again later, or name a fallback model"
    REDUCE_REQUEST_RATE = "reduce_request_rate", "wait as long as it says, ask less often, or name a fallback model"
    START_ENGINE = (
        "start_engine",
        "start the container engine, check its address and that you may use it, then try again",
    )
    LIST_ENGINE_OBJECTS = "list_engine_objects", "list what the container engine has"
    READ_ENGINE_REASON = "read_engine_reason", "see to what the container engine says, then try again"
    TAKE_ANOTHER_ARCHIVE = (
        "take_another_archive",
        "nothing of it was unpacked; have whoever made the archive pack it without that",
    )
    CHECK_NETWORK = (
        "check_network",
        "check the network, whether the server runs, and the URL of the provider, then try again",
    )
    REPORT_FAULT = "report_fault", "this is a fault of weft; its message is worth a report"


class Advice(NamedTuple):
    """An action with its arguments. `detail` is a sentence for one case alone; every surface shows it as it is."""

    action: Action
    arguments: Mapping[str, str | int] = {}
    detail: str = ""

    @property
    def hint(self) -> str:
        """The sentence for whoever calls the library."""
        return self.detail or self.action.sentence.format_map(self.arguments)


Hint = str | Action | Advice
"""What an error or a finding is given to say what to do: a sentence for this case alone, a code, or one with values."""


def advice_of(hint: Hint, action: Action = Action.OTHER) -> Advice:
    """A hint in full; a sentence of its own goes with `action`, and so does no hint at all."""
    if isinstance(hint, Advice):
        return hint
    return Advice(hint) if isinstance(hint, Action) else Advice(action, {}, hint)


# --- The root of all errors of Weft: a message, and what can be done about it.


def quoted(value: Any, length: int | None = 80) -> str:
    """A stranger's value in a message: its beginning (or all) as Python writes it, or its type where Python cannot."""
    try:
        return repr(value)[:length]
    except Exception:  # a whole number of too many digits, a list within itself, or a value's own `__repr__`
        return f"<{type(value).__name__}>"


class WeftError(Exception):
    """The root. `advice` is an action code with arguments, which each surface phrases. A class has a usual action; an
    error may have another, or a sentence for its case alone. Passwords of addresses in its message are hidden."""

    code: ClassVar[str] = "error"
    """What is recorded and published of the class; it stays when the class gets another name."""
    usual_action: Action = Action.OTHER
    again: str = ""
    """The command line that asks again, where a surface knows one for what failed."""

    def __init__(self, message: str, hint: Hint = "") -> None:
        super().__init__(without_credentials(message))
        self.advice = advice_of(hint, self.usual_action)

    @property
    def action(self) -> Action:
        return self.advice.action

    @property
    def hint(self) -> str:
        """What to do next, for whoever calls the library; it names no command."""
        return self.advice.hint


TIMED_OUT, SYSTEM_ERROR, INTERNAL_ERROR = "timed_out", "system_error", "internal_error"
"""Of errors that are not of the tree: what took too long, what the operating system refused, a defect."""


def error_code(error: BaseException) -> str:
    """The published code of an error, also of one that is not of the tree."""
    if isinstance(error, WeftError):
        return error.code
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    return SYSTEM_ERROR if isinstance(error, OSError) else INTERNAL_ERROR


def error_text(error: BaseException) -> str:
    """What an error says; one that is not of the tree says of which kind it is as well, since its code does not."""
    if isinstance(error, WeftError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_FORMER_CODES = {
    name: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
    for name in (
        "AgentBusy AmbiguousName ArchiveRefused BudgetSpent CheckFailed CodeFailed Conflict ConnectionCut "
        "ConnectionForbidden ContentGone ContentMissing ContentTooLarge ContextTooLong CopyUnfinished "
        "CredentialMissing CredentialRefused CredentialWithheld CriteriaUnmet Damaged EngineObjectMissing "
        "EngineRefused EngineUnreachable ErasureChanged FactDamaged FilesElsewhere HeadMoved IdCollision "
        "IllegalTransition InUse InboxFull InferenceFault InvalidBundle InvalidConfig InvalidFact InvalidInput "
        "InvalidJson InvalidKey KeyTaken LabelTaken LeaseLost LedgerError LedgerMissing LedgerMoved LedgerTooNew "
        "LedgerTooOld LimitExceeded LogCut ModelUnknown NoCanonicalForm NotALedger NotAllowed NotApplicable "
        "NotFound NotTrusted OutcomeUnknown OutsideError PeerRefused ProtocolBroken ProviderFailed "
        "ProviderUnreachable RateLimited ReadOnlyLedger ReplicaDiverged ReplyCut ReplyMalformed RequestRefused "
        "SchemaMismatch SessionBusy SeveralNames StoreError StoreFailed TokenRefused TurnClosed UnknownObjects "
        "Unsupported VariableMissing VersionConflict WeakDurability WithheldShows"
    ).split()
} | {"TimeoutError": TIMED_OUT}


def current_code(code: str) -> str:
    """The code that stands today for a recorded one: names of classes were recorded before codes were."""
    return _FORMER_CODES.get(code, code)


# --- The machine or the file is in the way: errors of opening, reading and writing a ledger, and of damaged ones.


class StoreError(WeftError):
    """The machine, the file or its permissions are in the way."""

    code = "store_error"
    usual_action = Action.EXAMINE_LEDGER


class NotALedger(StoreError):
    """What is at this address is not a ledger."""

    code = "not_a_ledger"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not a Weft ledger: {reason}", Action.CREATE_LEDGER_ELSEWHERE)
        self.path, self.reason = path, reason


class LedgerMissing(StoreError):
    """There is no ledger at this address."""

    code = "ledger_missing"

    def __init__(self, path: str, hint: Hint | None = None) -> None:
        usual = Action.CREATE_OR_NAME_LEDGER.of(path=hidden_address(path))
        super().__init__(f"there is no ledger at {path}", usual if hint is None else hint)
        self.path = path


class LedgerTooNew(StoreError):
    """A newer program wrote this ledger; this one would not understand it and touches nothing."""

    code = "ledger_too_new"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"this ledger has schema {found}, this program knows up to {known}", Action.UPGRADE_WEFT)
        self.found, self.known = found, known


class LedgerTooOld(StoreError):
    """An older program wrote this ledger, and it was opened for reading only: its views are not those of this one."""

    code = "ledger_too_old"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"this ledger has schema {found}, this program reads {known}", Action.UPGRADE_LEDGER)
        self.found, self.known = found, known


class CopyUnfinished(StoreError):
    """A copy was cut short: this ledger holds the beginning of another one, and nothing of its own."""

    code = "copy_unfinished"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is a copy that was not finished", Action.REPEAT_COPY)
        self.path = path


class InUse(StoreError):
    """Another program has the ledger open."""

    code = "in_use"

    def __init__(self, path: str, by: str = "") -> None:
        who = f" ({by})" if by else ""
        super().__init__(f"{path} is open in another program{who}", Action.STOP_OTHER_PROGRAM)
        self.path, self.by = path, by


class LedgerMoved(StoreError):
    """The file under the ledger's name is no longer the one that was opened. Nothing of this append is acknowledged."""

    code = "ledger_moved"

    def __init__(self, path: str, change: str) -> None:
        super().__init__(f"{path} {change} while it was open; the append is not acknowledged", Action.OPEN_WHERE_IT_IS)
        self.path, self.change = path, change


class SeveralNames(StoreError):
    """The file has several names, each of which would have a lock and a write-ahead log of its own."""

    code = "several_names"
    usual_action = Action.KEEP_ONE_NAME

    def __init__(self, path: str, names: int) -> None:
        super().__init__(f"{path} is one of {names} names (hard links) of the same file, and turns would be lost")
        self.path, self.names = path, names


class ReadOnlyLedger(StoreError):
    """The ledger was opened for reading."""

    code = "read_only_ledger"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is open for reading only", Action.OPEN_FOR_WRITING)


class WeakDurability(StoreError):
    """A commit would not survive a power cut here."""

    code = "weak_durability"
    usual_action = Action.USE_LOCAL_DISK

    def __init__(self, setting: str, wanted: str, found: str, hint: Hint = "") -> None:
        super().__init__(f"the database would not keep its promise: {setting} is {found}, not {wanted}", hint)
        self.setting, self.wanted, self.found = setting, wanted, found


class Unsupported(StoreError):
    """This cannot be done on this platform, file system or backend, and is not pretended."""

    code = "unsupported"
    usual_action = Action.USE_SUPPORTED_PLACE


class ProtocolBroken(StoreError):
    """The other side of a sync said something that has no place there. Nothing of that batch was stored."""

    code = "protocol_broken"
    usual_action = Action.CHECK_PROTOCOL_VERSION


class ConnectionCut(StoreError):
    """The other side of a sync went away."""

    code = "connection_cut"
    usual_action = Action.SYNC_AGAIN


class StoreFailed(StoreError):
    """The engine refused a read or a write (disk full, I/O error). Nothing of this append was stored."""

    code = "store_failed"
    usual_action = Action.FREE_SPACE


class OutcomeUnknown(StoreFailed):
    """The connection died at a commit and the server cannot be asked: the append is there whole or not at all."""

    code = "outcome_unknown"
    usual_action = Action.LOOK_BEFORE_RETRY


class Damaged(StoreError):
    """What is stored is not what was written. Verifying the ledger lists every place."""

    code = "damaged"
    usual_action = Action.EXAMINE_OR_RECOVER


class UnknownObjects(Damaged):
    """The database holds tables, views, indexes or triggers that Weft did not make. It is not opened."""

    code = "unknown_objects"
    usual_action = Action.RESTORE_OR_SALVAGE

    def __init__(self, path: str, objects: Sequence[str], hint: Hint = "") -> None:
        shown = [*objects[:5], *([f"and {len(objects) - 5} more"] if len(objects) > 5 else [])]
        super().__init__(f"{path} holds what Weft did not make: {', '.join(shown)}", hint)
        self.path, self.objects = path, tuple(objects)


class FactDamaged(Damaged):
    """A stored event or content does not match its hash."""

    code = "fact_damaged"

    def __init__(self, what: str, name: str, reason: str) -> None:
        super().__init__(f"{what} {name} is damaged: {reason}")
        self.what, self.name, self.reason = what, name, reason


class ContentMissing(Damaged):
    """The bytes of this content are not here: withheld, erased or lost; its place in the chain still verifies."""

    code = "content_missing"
    usual_action = Action.IMPORT_FACTS_AGAIN

    def __init__(self, ref: str) -> None:
        super().__init__(f"content {ref} is not in this ledger")
        self.ref = ref


class LogCut(Damaged):
    """The database is shorter than, or differs from, what was acknowledged."""

    code = "log_cut"
    usual_action = Action.ACCEPT_LOSS

    def __init__(self, n: int, found: int, reason: str) -> None:
        super().__init__(f"event {n} was acknowledged, but the log {reason} (it ends at {found})")
        self.n, self.found, self.reason = n, found, reason


# --- Something outside was asked for and not had: a key, a command, a server, a model.


class OutsideError(WeftError):
    """A key, a server or a model was asked for and not had. `acts` says who must act: you, the provider, or us."""

    code = "outside_error"
    acts: str = "you"
    usual_action = Action.CORRECT_REQUEST
    status: int | None = None
    request_id: str | None = None
    retry_after: float | None = None
    lasting: bool = False
    """Whether it is known that asking again would fail likewise."""
    partial: str = ""
    """What had come of a reply until then."""

    def say_more(self, words: str) -> None:
        """Say this as well, behind what was said outside."""
        self.args = (f"{str(self).rstrip('.')}; {words}", *self.args[1:])


class CredentialMissing(OutsideError):
    """There is no such credential, or nothing is found where it should lie."""

    code = "credential_missing"
    usual_action = Action.LIST_CREDENTIALS

    def __init__(self, name: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"credential {name!r}: {reason}", hint)
        self.name, self.reason = name, reason


class CredentialWithheld(OutsideError):
    """It exists, and whoever acts must not have it: it was not given to them, or belongs to another origin."""

    code = "credential_withheld"
    usual_action = Action.PROVIDE_CREDENTIAL

    def __init__(self, name: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"credential {name!r} is withheld: {reason}", hint)
        self.name, self.reason = name, reason


class CodeFailed(OutsideError):
    """A code program ended with an error of its own, or ran into a limit."""

    code = "code_failed"
    usual_action = Action.CORRECT_CODE

    def __init__(self, name: str, error: str, printed: str = "") -> None:
        super().__init__(f"code {name!r}: {error}")
        self.name, self.error, self.printed = name, error, printed


class CheckFailed(OutsideError):
    """A command that was to judge something gave no judgement: it took too long, printed too much, or broke off."""

    code = "check_failed"


class ConnectionForbidden(OutsideError):
    """The guard of outgoing connections refused it: another origin, no TLS, or an address that must not be reached."""

    code = "connection_forbidden"
    usual_action = Action.NAME_SERVER_URL


class RequestRefused(OutsideError):
    """The provider refused the request as it is."""

    code = "request_refused"
    usual_action = Action.CORRECT_MODEL_REQUEST


class CredentialRefused(RequestRefused):
    """A provider refused the key."""

    code = "credential_refused"
    usual_action = Action.CHECK_CREDENTIAL


class ModelUnknown(RequestRefused):
    """A provider knows no such model."""

    code = "model_unknown"
    usual_action = Action.CHECK_MODEL_NAME


class ContextTooLong(RequestRefused):
    """The provider refused a context as longer than the model takes."""

    code = "context_too_long"
    usual_action = Action.COMPACT_SESSION


class BudgetSpent(OutsideError):
    """The time or the money for this request is used up."""

    code = "budget_spent"
    usual_action = Action.RAISE_LIMIT


class ProviderFailed(OutsideError):
    """A provider could not answer."""

    code = "provider_failed"
    acts = "the provider"
    usual_action = Action.RETRY_LATER


class RateLimited(ProviderFailed):
    """A provider was asked too often."""

    code = "rate_limited"
    usual_action = Action.REDUCE_REQUEST_RATE


class ProviderUnreachable(ProviderFailed):
    """A provider's server could not be reached."""

    code = "provider_unreachable"
    usual_action = Action.CHECK_NETWORK


class ReplyMalformed(ProviderFailed):
    """What came is no reply of this provider's kind."""

    code = "reply_malformed"


class ReplyCut(ProviderFailed):
    """The reply ended before its end. `partial` is what had come."""

    code = "reply_cut"


class ReplyUnfit(OutsideError):
    """The reply is whole, and does not fit the schema that the model was given. It was paid for: `reply` is all of
    it."""

    code = "reply_unfit"
    acts = "the provider"
    usual_action = Action.RETRY_LATER
    reply: Any = None


class InferenceFault(OutsideError):
    """Something broke on our side of the connection."""

    code = "inference_fault"
    acts = "us"
    usual_action = Action.REPORT_FAULT


# --- What a container engine, or an archive of its data, can fail with: a part of the tree of `weft.kernel.errors`.


class EngineUnreachable(OutsideError):
    """No container engine answers at this address, or not in time. What was asked for may have been done."""

    code = "engine_unreachable"
    usual_action = Action.START_ENGINE

    def __init__(self, address: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"the container engine at {address}: {reason}", hint)
        self.address, self.reason = address, reason


class EngineObjectMissing(OutsideError):
    """The container engine has no such volume, container or image: it was removed, or never made."""

    code = "engine_object_missing"
    usual_action = Action.LIST_ENGINE_OBJECTS
    lasting = True

    def __init__(self, what: str, name: str, hint: Hint = "") -> None:
        super().__init__(f"the container engine has no {what} {name!r}", hint)
        self.what, self.name = what, name


class EngineRefused(OutsideError):
    """The container engine answered that it does not do this; `reason` is what it said."""

    code = "engine_refused"
    usual_action = Action.READ_ENGINE_REASON

    def __init__(self, asked: str, status: int, reason: str, hint: Hint = "") -> None:
        super().__init__(f"the container engine refused to {asked}: {reason}", hint)
        self.asked, self.status, self.reason = asked, status, reason


# --- Every refusal of Weft, as one tree; the branches say who must act.


class InvalidInput(WeftError):
    """A value that cannot be recorded as it is."""

    code = "invalid_input"
    usual_action = Action.CORRECT_VALUE


class ArchiveRefused(InvalidInput):
    """An archive of a volume or an image that holds what must not be unpacked. Nothing of it was."""

    code = "archive_refused"
    usual_action = Action.TAKE_ANOTHER_ARCHIVE

    def __init__(self, reason: str, hint: Hint = "") -> None:
        super().__init__(f"the archive is refused: {reason}", hint)
        self.reason = reason


class NoCanonicalForm(InvalidInput):
    """RFC 8785 knows no form for this value; `path` says where it sits."""

    code = "no_canonical_form"
    usual_action = Action.KEEP_TO_JSON

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class InvalidJson(InvalidInput):
    """A text that should be JSON is not."""

    code = "invalid_json"
    usual_action = Action.WRITE_JSON

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(f"not valid JSON{'' if offset is None else f' at byte {offset}'}: {reason}")
        self.reason, self.offset = reason, offset


class ContentTooLarge(InvalidInput):
    """A content has more than 256 MiB."""

    code = "content_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"a content holds at most {limit} bytes", Action.REFER_TO_FILE)
        self.limit = limit


class LimitExceeded(InvalidInput):
    """An input that somebody else wrote takes more than is read of it. What was read before stays."""

    code = "limit_exceeded"

    def __init__(self, what: str, found: int, limit: int, hint: Hint = "") -> None:
        super().__init__(f"{what}: {found}, where {limit} is the most that is read", hint)
        self.what, self.found, self.limit = what, found, limit


class InvalidFact(InvalidInput):
    """A line of facts that is not what it says it is. Nothing of its batch was stored."""

    code = "invalid_fact"
    usual_action = Action.EXPORT_FACTS_AGAIN

    def __init__(self, where: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"{where}: {reason}", hint)
        self.where, self.reason = where, reason


class InvalidBundle(InvalidInput):
    """A file that is no bundle, or one that does not prove what it says. Nothing of it was taken in."""

    code = "invalid_bundle"
    usual_action = Action.ASK_FOR_BUNDLE_AGAIN

    def __init__(self, reason: str) -> None:
        super().__init__(f"the bundle is refused: {reason}")
        self.reason = reason


class InvalidKey(InvalidInput):
    """A key, or the name of one, that cannot be used. Says nothing of what is in it."""

    code = "invalid_key"
    usual_action = Action.LIST_KEYS


class InvalidConfig(InvalidInput):
    """A program's configuration that its kind does not take; `path` says where. Several faults are each in `faults`."""

    code = "invalid_config"
    usual_action = Action.READ_PROGRAM_SETTINGS

    def __init__(self, path: str, reason: str, hint: Hint = "", faults: Sequence[WeftError] = ()) -> None:
        super().__init__(f"{path}: {reason}", hint)
        self.path, self.reason, self.faults = path, reason, tuple(faults)


class VariableMissing(InvalidInput):
    """A configuration names a variable of the environment that is not set."""

    code = "variable_missing"

    def __init__(self, variable: str, path: str) -> None:
        super().__init__(f"{path} needs the variable {variable}, not set", Action.SET_VARIABLE.of(variable=variable))
        self.variable, self.path = variable, path


class SchemaMismatch(InvalidInput):
    """A value does not fit its JSON Schema; `problems` say where and why."""

    code = "schema_mismatch"
    usual_action = Action.CORRECT_VALUE_OR_SCHEMA

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        super().__init__(f"{what} does not fit its schema: {'; '.join(problems[:5])}")
        self.problems = tuple(problems)


class LedgerError(WeftError):
    """The request does not fit the ledger's present state."""

    code = "ledger_error"
    usual_action = Action.READ_AGAIN


class NotFound(LedgerError):
    """Nothing has this name; without a name, there is nothing of this kind at all."""

    code = "not_found"
    usual_action = Action.LIST_HISTORY

    def __init__(self, what: str, name: str | None, hint: Hint = "") -> None:
        message = f"this ledger has no {what}" if name is None else f"no {what} {name!r} in this ledger"
        super().__init__(message, hint)
        self.what, self.name = what, name


class ContentGone(LedgerError):
    """These bytes were erased on purpose: a tombstone says by whom, when and why."""

    code = "content_gone"
    usual_action = Action.LIST_ERASURES

    def __init__(self, ref: str) -> None:
        super().__init__(f"content {ref} was erased")
        self.ref = ref


class FilesElsewhere(LedgerError):
    """A snapshot is known here, and what it holds is not: facts travel between ledgers, files do not."""

    code = "files_elsewhere"

    def __init__(self, snapshot: str, where: str, hint: Hint) -> None:
        super().__init__(f"the files of snapshot {snapshot} are not here: {where}", hint)
        self.snapshot, self.where = snapshot, where


class AmbiguousName(LedgerError):
    """A name fits several things; it lists them."""

    code = "ambiguous_name"
    usual_action = Action.USE_LONGER_ID

    def __init__(self, name: str, candidates: Sequence[str], hint: Hint = "") -> None:
        super().__init__(f"{name!r} could be {', '.join(candidates)}", hint)
        self.name, self.candidates = name, tuple(candidates)


class Conflict(LedgerError):
    """Somebody else was first, or something is in the way."""

    code = "conflict"


class HeadMoved(Conflict):
    """Another writer moved this session first. Read `actual`, decide again, retry."""

    code = "head_moved"
    usual_action = Action.READ_SESSION_AGAIN

    def __init__(self, label: str, expected: str | None, actual: str | None) -> None:
        super().__init__(f"session {label!r} is at {actual or 'no turn'}, not {expected or 'no turn'}")
        self.label, self.expected, self.actual = label, expected, actual


class SessionBusy(Conflict):
    """A turn is being recorded in this session, or about to begin there, by somebody who is alive."""

    code = "session_busy"
    usual_action = Action.WAIT_OR_FORK

    def __init__(self, label: str, turn: str, owner: str, hint: Hint = "") -> None:
        what = f"is recording turn {turn} (held by {owner})" if turn else f"is held by {owner}"
        super().__init__(f"session {label!r} {what}", hint)
        self.label, self.turn, self.owner = label, turn, owner


class InboxFull(Conflict):
    """More messages wait than are admitted. Nothing of this one was written; it may be sent again later."""

    code = "inbox_full"
    usual_action = Action.WAIT_FOR_INBOX


class AgentBusy(Conflict):
    """Somebody else runs this agent: who is alive, or who took it up meanwhile. Nothing of this step was recorded."""

    code = "agent_busy"
    usual_action = Action.WAIT_OR_RESET_ABANDONED_AGENT

    def __init__(self, name: str, reason: str, *, was_held: bool = False) -> None:
        super().__init__(f"agent {name!r} {reason}")
        self.name, self.reason, self.was_held = name, reason, was_held  # held by us, until somebody took it


class LeaseLost(Conflict):
    """This writer was silent for too long and another one took the session; its turn is failed."""

    code = "lease_lost"
    usual_action = Action.BEGIN_TURN_AFTER_LOSS

    def __init__(self, turn: str) -> None:
        super().__init__(f"the lease under which turn {turn} was recorded is gone")
        self.turn = turn


class ErasureChanged(Conflict):
    """Somebody wrote about the same things after the erasure was planned; what would go or stay is different now."""

    code = "erasure_changed"
    usual_action = Action.PLAN_ERASURE_AGAIN


def with_article(noun: str) -> str:
    """A kind of program as it stands in a sentence: an agent, a task, information."""
    return noun if noun == "information" else f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


class LabelTaken(Conflict):
    """A label or name belongs to something else."""

    code = "label_taken"

    def __init__(self, label: str, by: str) -> None:
        super().__init__(f"the name {label!r} is already {by}", Action.CHOOSE_ANOTHER_NAME)
        self.label, self.by = label, by


class KeyTaken(Conflict):
    """A key stands for one command; it was given with another before."""

    code = "key_taken"
    usual_action = Action.REPEAT_COMMAND_OR_CHANGE_KEY

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {quoted(key)} was used for something else")
        self.key = key


class TurnClosed(Conflict):
    """A step was recorded into a turn that has ended."""

    code = "turn_closed"

    def __init__(self, turn: str, status: str) -> None:
        super().__init__(f"turn {turn} is {status}; it takes no more steps", Action.BEGIN_TURN)
        self.turn, self.status = turn, status


class IdCollision(Conflict):
    """A fresh id was already taken (equal randomness in the same millisecond); the ledger mints another and retries."""

    code = "id_collision"
    usual_action = Action.TRY_AGAIN_WITH_NEW_ID


class ReplicaDiverged(Conflict):
    """Two ledgers go by one replica id and say different things under it."""

    code = "replica_diverged"
    usual_action = Action.RENEW_BOTH_REPLICAS
    is_from_peer = False
    """The other side of a sync said so: what is remembered of it here is not what it said."""


class NotApplicable(LedgerError):
    """The parts exist but do not fit together, such as a compaction of another thread."""

    code = "not_applicable"
    usual_action = Action.COMPARE_BOTH


class ApprovalNeeded(NotApplicable):
    """A tool call waits for a person, and whoever sent the message gave nothing that answers for one. The turn stays
    parked until somebody answers."""

    code = "approval_needed"
    usual_action = Action.LIST_APPROVALS

    def __init__(self, approval: str, tool: str, turn: str) -> None:
        words = f"the call of {tool!r} waits for a person, and turn {turn} with it"
        super().__init__(words, Action.ANSWER_APPROVAL.of(approval=approval))
        self.approval, self.tool, self.turn = approval, tool, turn


class AnswerUnfit(NotApplicable):
    """A model was asked for an answer of a given type, and its answer is none, also when it was told what is wrong. The
    turns are recorded."""

    code = "answer_unfit"
    usual_action = Action.ASK_OTHERWISE


class WithheldShows(NotApplicable):
    """Words of a text that was to be withheld stand in what would be disclosed."""

    code = "withheld_shows"
    usual_action = Action.WITHHOLD_MORE_OR_FORCE

    def __init__(self, places: Sequence[str], more: int = 0) -> None:
        rest = f" and in {more} more places" if more else ""
        super().__init__(f"withheld words also stand in {'; '.join(places)}{rest}")
        self.places = tuple(places)


class IllegalTransition(NotApplicable):
    """A program's lifecycle knows no such step from where it stands; `legal` are those it knows."""

    code = "illegal_transition"

    def __init__(self, what: str, name: str, state: str, verb: str, legal: Mapping[str, str]) -> None:
        ways = ", ".join(f"{way} (to {to})" for way, to in legal.items())
        advice = Action.USE_LEGAL_STEP.of(steps=ways) if ways else Action.NO_NEXT_STEP
        super().__init__(f"{what} {name!r} is {state}: it cannot {verb} from there", advice)
        self.what, self.name, self.state, self.verb, self.legal = what, name, state, verb, dict(legal)


class CriteriaUnmet(NotApplicable):
    """Success criteria of a task do not hold; what was observed is recorded. `failed` are their places from 0."""

    code = "criteria_unmet"
    usual_action = Action.COMPLETE_MISSING_PARTS

    def __init__(self, name: str, failed: Sequence[int], reasons: Sequence[str]) -> None:
        super().__init__(f"task {name!r} cannot complete: {'; '.join(reasons)}")
        self.name, self.failed, self.reasons = name, tuple(failed), tuple(reasons)


class NotAllowed(LedgerError):
    """Whoever acts, or somebody on whose behalf they act, lacks this right. `chain` begins with who acts."""

    code = "not_allowed"
    usual_action = Action.REQUEST_RIGHT

    def __init__(self, right: str, chain: Sequence[str], what: str = "", hint: Hint = "") -> None:
        super().__init__(f"{' for '.join(chain)} may not {what or f'use {right!r}'}", hint)
        self.right, self.chain = right, tuple(chain)


class TokenRefused(LedgerError):
    """A token that nobody can act with."""

    code = "token_refused"
    usual_action = Action.GET_TOKEN


class NotTrusted(LedgerError):
    """The ledger was neither made nor allowed by the person who opened it, so nothing in it acts."""

    code = "not_trusted"

    def __init__(self, path: str, action: str, why: str, hint: Hint) -> None:
        super().__init__(f"{path} is not trusted ({why}), so it may not {action}", hint)
        self.path, self.why = path, why


class VersionConflict(Conflict):
    """Somebody else changed this program first. Read it again, decide again, retry."""

    code = "version_conflict"
    usual_action = Action.READ_PROGRAM_AGAIN

    def __init__(self, name: str, expected: int, actual: int) -> None:
        super().__init__(f"program {name!r} is at version {actual}, not {expected}")
        self.name, self.expected, self.actual = name, expected, actual


class PeerRefused(LedgerError):
    """The other ledger refused what it was sent or asked for. Nothing of it was stored there."""

    code = "peer_refused"
    usual_action = Action.REPAIR_OTHER_LEDGER

    def __init__(self, error: str, message: str, hint: Hint = "") -> None:
        super().__init__(f"the other side refuses: {message}", hint)
        self.error = error
