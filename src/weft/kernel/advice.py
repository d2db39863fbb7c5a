"""What to do about a refusal or a finding: an action code with arguments, which each surface phrases in its own way.

`Action` is the one list of codes. Beside each code stands its sentence for whoever calls the library: it names no
command of any surface. `weft.surfaces.wire.hints` has the sentences of the command line. A sentence in braces takes the
argument of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


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
        "docs/programs.md says what each kind of program is configured by",
    )
    SET_VARIABLE = "set_variable", "set {variable} and try again"
    CORRECT_VALUE_OR_SCHEMA = "correct_value_or_schema", "mend the value, or the schema"
    GIVE_MESSAGE = "give_message", "give it as message"
    GIVE_TEXT = "give_text", "give its text"
    FETCH_MODEL = "fetch_model", "fetch {model} with fetch_model"
    GIVE_SERVER_URL = "give_server_url", "give its server as base_url"
    GIVE_ONE_KEY_SOURCE = "give_one_key_source", "give env or command, not both"
    READ_HELP = "read_help", "read how {command} is used"

    # names and lists
    LIST_HISTORY = "list_history", "list the sessions, or the turns of one, to see what there is"
    LIST_SESSIONS = "list_sessions", "list the sessions"
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
    TYPE_MORE_CHARACTERS = "type_more_characters", "type more characters of the id"
    CHOOSE_ANOTHER_NAME = "choose_another_name", "choose another name"
    GIVE_KEY_NAME = "give_key_name", "give it a name"
    GIVE_ANOTHER_KEY_NAME = "give_another_key_name", "give it another name"
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
        "configure session {session!r} with a model, or name one for this message",
    )
    BRING_SUMMARY = "bring_summary", "bring a summary of the branch instead"
    NAME_TURN_OF_THREAD = "name_turn_of_thread", "name a turn of that thread"
    NAME_COMPACTION = "name_compaction", "name a turn that is a compaction"
    NAME_ONE_BRANCH = "name_one_branch", "name the turn to settle on: {branches}"
    CHOOSE_OWN_BRANCH = "choose_own_branch", "choose our own branch"

    # erasing, bundles, exports
    PLAN_ERASURE_AGAIN = "plan_erasure_again", "plan it again and look at what would go"
    FINISH_ERASURE = "finish_erasure", "close what has it open, then finish the erasure"
    DECIDE_ERASURES = "decide_erasures", "look at the pending erasures, then apply them"
    WITHHOLD_MORE_OR_FORCE = "withhold_more_or_force", "withhold those places too, or force it"
    CHOOSE_ANOTHER_FILE_OR_FORCE = "choose_another_file_or_force", "choose another file, or replace this one with force"

    # programs
    COMPLETE_WHAT_IS_MISSING = "complete_what_is_missing", "see to what is missing, then complete it again"
    READ_PROGRAM_AGAIN = "read_program_again", "read the program again and decide with its new configuration"
    USE_LEGAL_STEP = "use_legal_step", "it can {steps}"
    NOTHING_FOLLOWS = "nothing_follows", "nothing follows it"
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
    SET_AGENT_MODEL = "set_agent_model", "configure agent {agent!r} with a model"
    ASSIGN_TASK = "assign_task", "assign task {task!r} to somebody first"
    READ_REQUEST = "read_request", "it is kept among the requests of {human!r}"
    READ_REQUEST_AFTER = "read_request_after", "{hint}; it is kept among the requests of {human!r}"
    GIVE_VECTOR = "give_vector", "embed {node!r} first"
    FORGET_VECTORS = "forget_vectors", "forget the vectors of this model first"
    HAVE_RIGHT_GIVEN = (
        "have_right_given",
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
    GIVE_NEW_FILE = "give_new_file", "give the path of a new file; a copy goes to another server or schema"
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
    END_OTHER_PROGRAM = "end_other_program", "end it, then try again"
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
    MEND_FACTS_THEN_REBUILD = (
        "mend_facts_then_rebuild",
        "mend the facts first; if they verify, rebuild the views",
    )
    SCAN_SECRETS_AGAIN = "scan_secrets_again", "look for secrets in everything again"
    IMPORT_AGAIN = "import_again", "import again"
    IMPORT_REST = "import_rest", "import the rest"

    # other ledgers
    MEND_OTHER_LEDGER = "mend_other_ledger", "mend it there, then sync again"
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
    GIVE_CREDENTIAL = "give_credential", "give it to whoever acts, or name a credential of the server that is asked"
    ALLOW_VARIABLE = (
        "allow_variable",
        "if that server may have it, add a credential for {variable} and the origin {origin}",
    )
    CORRECT_CODE = "correct_code", "mend the program; what it printed is told beside the error"
    NAME_SERVER_URL = (
        "name_server_url",
        "name the server by the URL that is meant; docs/inference.md tells which addresses may be reached",
    )
    CORRECT_MODEL_REQUEST = (
        "correct_model_request",
        "mend the request or the model's settings; trying again will not help",
    )
    CHECK_CREDENTIAL = "check_credential", "check the key itself, where it is read from and what it may be used for"
    CHECK_MODEL_NAME = "check_model_name", "check the model's name and the provider's URL"
    CHECK_BASE_URL = "check_base_url", "check the base URL of the provider {provider}; many end with /v1"
    COMPACT_SESSION = "compact_session", "compact the session, or use a model with a larger context"
    ALLOW_MORE = "allow_more", "allow more, or ask for less"
    TRY_LATER = "try_later", "try again later, or name a fallback model"
    ASK_LESS_OFTEN = "ask_less_often", "wait as long as it says, ask less often, or name a fallback model"
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
