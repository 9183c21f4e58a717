"""Validation of workload controllers, CronJobs with their schedules and time zones, and HorizontalPodAutoscalers.

Sources: Kubernetes's pkg/apis/apps/validation, pkg/apis/batch/validation and pkg/apis/autoscaling/validation.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, group_kind, parse_selector
from batchyard.api.schema import semantic_equality
from batchyard.api.validation import job, pods, rules

# Validation of CronJob schedules, with the error texts of the library that Kubernetes uses.
#
# Source: github.com/robfig/cron v3, parser.go (`ParseStandard`); Go's strconv.Atoi and time.ParseDuration.


#: The maximum length of a schedule in bytes; real ones are far shorter.
SCHEDULE_LENGTH_MAX: Final = 1024
_SCHEDULE_FIELD_COUNT: Final = 5
_INT64_MAX: Final = 2**63 - 1
_INTEGER_DIGITS_MAX: Final = 19
_INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]+")
_DURATION_PART: Final = re.compile(r"([0-9]*)(\.?)([0-9]*)([^0-9.]*)")
_UNIT_NANOS: Final = {"ns": 1.0, "us": 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_SCHEDULE_DESCRIPTORS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: The start of a schedule with a fixed period, in front of a duration.
EVERY_PREFIX: Final = "@every "
MONTH_NAMES: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAY_NAMES: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class ScheduleError(Exception):
    """A CronJob schedule is invalid; the message is that of Kubernetes's cron library."""


class _FieldBounds(NamedTuple):
    minimum: int
    maximum: int
    names: Mapping[str, int] = {}


_SCHEDULE_FIELD_BOUNDS: Final = (
    _FieldBounds(0, 59),
    _FieldBounds(0, 23),
    _FieldBounds(1, 31),
    _FieldBounds(1, 12, {name: number for number, name in enumerate(MONTH_NAMES, 1)}),
    _FieldBounds(0, 6, {name: number for number, name in enumerate(WEEKDAY_NAMES)}),
)


class ScheduleField(NamedTuple):
    """The values that a field of a cron schedule allows."""

    values: frozenset[int]
    #: Whether the field contains a `*` or `?` without a step.
    has_star: bool


def parse_schedule_fields(text: str) -> Sequence[ScheduleField]:
    """Parse five cron fields, or a descriptor such as `@daily`; return no fields for a period such as `@every 90m`.

    Raises ScheduleError if the schedule is invalid.
    """
    if not text:
        raise ScheduleError("empty spec string")
    if text.startswith("@") and text not in _SCHEDULE_DESCRIPTORS:
        _check_period(text)
        return ()
    fields = _SCHEDULE_DESCRIPTORS.get(text, text).split()
    if len(fields) != _SCHEDULE_FIELD_COUNT:
        joined_fields = " ".join(fields)
        raise ScheduleError(f"expected exactly {_SCHEDULE_FIELD_COUNT} fields, found {len(fields)}: [{joined_fields}]")
    return [_parse_field(field, bounds) for field, bounds in zip(fields, _SCHEDULE_FIELD_BOUNDS, strict=True)]


def _check_period(text: str) -> None:
    if not text.startswith(EVERY_PREFIX):
        raise ScheduleError(f"unrecognized descriptor: {text}")
    try:
        _check_duration(text.removeprefix(EVERY_PREFIX))
    except ScheduleError as error:
        raise ScheduleError(f"failed to parse duration {text}: {error}") from error


def _parse_field(text: str, bounds: _FieldBounds) -> ScheduleField:
    values, has_star = set[int](), False
    for expression in filter(None, text.split(",")):
        field_range = _parse_field_range(expression, bounds)
        values.update(field_range)
        has_star = has_star or (expression[0] in "*?" and field_range.step == 1)
    return ScheduleField(frozenset(values), has_star)


def _parse_field_range(expression: str, bounds: _FieldBounds) -> range:
    """Parse a part of a cron field: `*`, `?`, `N` or `N-M`, and an optional step `/N`."""
    range_text, *step_texts = expression.split("/")
    low_text, *high_texts = range_text.split("-")
    start, end = bounds.minimum, bounds.maximum
    if low_text not in {"*", "?"}:
        start = end = _parse_field_number(low_text, bounds.names)
        if len(high_texts) > 1:
            raise ScheduleError(f"too many hyphens: {expression}")
        end = _parse_field_number(high_texts[0], bounds.names) if high_texts else end
    if len(step_texts) > 1:
        raise ScheduleError(f"too many slashes: {expression}")
    step = _parse_field_number(step_texts[0], {}) if step_texts else 1
    if step_texts and not high_texts:
        end = bounds.maximum
    if start < bounds.minimum:
        raise ScheduleError(f"beginning of range ({start}) below minimum ({bounds.minimum}): {expression}")
    if end > bounds.maximum:
        raise ScheduleError(f"end of range ({end}) above maximum ({bounds.maximum}): {expression}")
    if start > end:
        raise ScheduleError(f"beginning of range ({start}) beyond end of range ({end}): {expression}")
    if not step:
        raise ScheduleError(f"step of range should be a positive number: {expression}")
    return range(start, end + 1, step)


def _parse_field_number(text: str, names: Mapping[str, int]) -> int:
    named_value = names.get(text.lower())
    if named_value is not None:
        return named_value
    problem = ""
    significant_digits = text.lstrip("+-").lstrip("0")
    if not _INTEGER_PATTERN.fullmatch(text):
        problem = "invalid syntax"
    elif len(significant_digits) > _INTEGER_DIGITS_MAX or int(text) not in range(-_INT64_MAX - 1, _INT64_MAX + 1):
        problem = "value out of range"
    if problem:
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": {problem}')
    if int(text) < 0:
        raise ScheduleError(f"negative number ({int(text)}) not allowed: {text}")
    return int(text)


def _check_duration(text: str) -> None:
    """Raise ScheduleError unless a text is a duration in Go's syntax, such as `1h30m` or `1.5h`."""
    unsigned_text = text[1:] if text[:1] in {"+", "-"} else text
    if unsigned_text == "0":
        return
    invalid_error, total_nanoseconds, text_position = ScheduleError(f'time: invalid duration "{text}"'), 0.0, 0
    if not unsigned_text:
        raise invalid_error
    while text_position < len(unsigned_text):
        part_match = _DURATION_PART.match(unsigned_text, text_position)
        if part_match is None or not (part_match[1] or part_match[3]):
            raise invalid_error
        if not part_match[4]:
            raise ScheduleError(f'time: missing unit in duration "{text}"')
        if part_match[4] not in _UNIT_NANOS:
            raise ScheduleError(f'time: unknown unit "{part_match[4]}" in duration "{text}"')
        total_nanoseconds += float(f"{part_match[1] or 0}.{part_match[3] or 0}") * _UNIT_NANOS[part_match[4]]
        if total_nanoseconds > _INT64_MAX:
            raise invalid_error
        text_position = part_match.end()


# The names in the IANA time zone database, so that validation does not depend on the files of the machine.


_TIME_ZONE_NAMES: Final = """
    Africa/Abidjan Africa/Accra Africa/Addis_Ababa Africa/Algiers Africa/Asmara Africa/Asmera Africa/Bamako
    Africa/Bangui Africa/Banjul Africa/Bissau Africa/Blantyre Africa/Brazzaville Africa/Bujumbura Africa/Cairo
    Africa/Casablanca Africa/Ceuta Africa/Conakry Africa/Dakar Africa/Dar_es_Salaam Africa/Djibouti Africa/Douala
    Africa/El_Aaiun Africa/Freetown Africa/Gaborone Africa/Harare Africa/Johannesburg Africa/Juba Africa/Kampala
    Africa/Khartoum Africa/Kigali Africa/Kinshasa Africa/Lagos Africa/Libreville Africa/Lome Africa/Luanda
    Africa/Lubumbashi Africa/Lusaka Africa/Malabo Africa/Maputo Africa/Maseru Africa/Mbabane Africa/Mogadishu
    Africa/Monrovia Africa/Nairobi Africa/Ndjamena Africa/Niamey Africa/Nouakchott Africa/Ouagadougou
    Africa/Porto-Novo Africa/Sao_Tome Africa/Timbuktu Africa/Tripoli Africa/Tunis Africa/Windhoek America/Adak
    America/Anchorage America/Anguilla America/Antigua America/Araguaina America/Argentina/Buenos_Aires
    America/Argentina/Catamarca America/Argentina/ComodRivadavia America/Argentina/Cordoba America/Argentina/Jujuy
    America/Argentina/La_Rioja America/Argentina/Mendoza America/Argentina/Rio_Gallegos America/Argentina/Salta
    America/Argentina/San_Juan America/Argentina/San_Luis America/Argentina/Tucuman America/Argentina/Ushuaia
    America/Aruba America/Asuncion America/Atikokan America/Atka America/Bahia America/Bahia_Banderas America/Barbados
    America/Belem America/Belize America/Blanc-Sablon America/Boa_Vista America/Bogota America/Boise
    America/Buenos_Aires America/Cambridge_Bay America/Campo_Grande America/Cancun America/Caracas America/Catamarca
    America/Cayenne America/Cayman America/Chicago America/Chihuahua America/Ciudad_Juarez America/Coral_Harbour
    America/Cordoba America/Costa_Rica America/Coyhaique America/Creston America/Cuiaba America/Curacao
    America/Danmarkshavn America/Dawson America/Dawson_Creek America/Denver America/Detroit America/Dominica
    America/Edmonton America/Eirunepe America/El_Salvador America/Ensenada America/Fort_Nelson America/Fort_Wayne
    America/Fortaleza America/Glace_Bay America/Godthab America/Goose_Bay America/Grand_Turk America/Grenada
    America/Guadeloupe America/Guatemala America/Guayaquil America/Guyana America/Halifax America/Havana
    America/Hermosillo America/Indiana/Indianapolis America/Indiana/Knox America/Indiana/Marengo
    America/Indiana/Petersburg America/Indiana/Tell_City America/Indiana/Vevay America/Indiana/Vincennes
    America/Indiana/Winamac America/Indianapolis America/Inuvik America/Iqaluit America/Jamaica America/Jujuy
    America/Juneau America/Kentucky/Louisville America/Kentucky/Monticello America/Knox_IN America/Kralendijk
    America/La_Paz America/Lima America/Los_Angeles America/Louisville America/Lower_Princes America/Maceio
    America/Managua America/Manaus America/Marigot America/Martinique America/Matamoros America/Mazatlan
    America/Mendoza America/Menominee America/Merida America/Metlakatla America/Mexico_City America/Miquelon
    America/Moncton America/Monterrey America/Montevideo America/Montreal America/Montserrat America/Nassau
    America/New_York America/Nipigon America/Nome America/Noronha America/North_Dakota/Beulah
    America/North_Dakota/Center America/North_Dakota/New_Salem America/Nuuk America/Ojinaga America/Panama
    America/Pangnirtung America/Paramaribo America/Phoenix America/Port-au-Prince America/Port_of_Spain
    America/Porto_Acre America/Porto_Velho America/Puerto_Rico America/Punta_Arenas America/Rainy_River
    America/Rankin_Inlet America/Recife America/Regina America/Resolute America/Rio_Branco America/Rosario
    America/Santa_Isabel America/Santarem America/Santiago America/Santo_Domingo America/Sao_Paulo
    America/Scoresbysund America/Shiprock America/Sitka America/St_Barthelemy America/St_Johns America/St_Kitts
    America/St_Lucia America/St_Thomas America/St_Vincent America/Swift_Current America/Tegucigalpa America/Thule
    America/Thunder_Bay America/Tijuana America/Toronto America/Tortola America/Vancouver America/Virgin
    America/Whitehorse America/Winnipeg America/Yakutat America/Yellowknife Antarctica/Casey Antarctica/Davis
    Antarctica/DumontDUrville Antarctica/Macquarie Antarctica/Mawson Antarctica/McMurdo Antarctica/Palmer
    Antarctica/Rothera Antarctica/South_Pole Antarctica/Syowa Antarctica/Troll Antarctica/Vostok Arctic/Longyearbyen
    Asia/Aden Asia/Almaty Asia/Amman Asia/Anadyr Asia/Aqtau Asia/Aqtobe Asia/Ashgabat Asia/Ashkhabad Asia/Atyrau
    Asia/Baghdad Asia/Bahrain Asia/Baku Asia/Bangkok Asia/Barnaul Asia/Beirut Asia/Bishkek Asia/Brunei Asia/Calcutta
    Asia/Chita Asia/Choibalsan Asia/Chongqing Asia/Chungking Asia/Colombo Asia/Dacca Asia/Damascus Asia/Dhaka
    Asia/Dili Asia/Dubai Asia/Dushanbe Asia/Famagusta Asia/Gaza Asia/Harbin Asia/Hebron Asia/Ho_Chi_Minh
    Asia/Hong_Kong Asia/Hovd Asia/Irkutsk Asia/Istanbul Asia/Jakarta Asia/Jayapura Asia/Jerusalem Asia/Kabul
    Asia/Kamchatka Asia/Karachi Asia/Kashgar Asia/Kathmandu Asia/Katmandu Asia/Khandyga Asia/Kolkata Asia/Krasnoyarsk
    Asia/Kuala_Lumpur Asia/Kuching Asia/Kuwait Asia/Macao Asia/Macau Asia/Magadan Asia/Makassar Asia/Manila
    Asia/Muscat Asia/Nicosia Asia/Novokuznetsk Asia/Novosibirsk Asia/Omsk Asia/Oral Asia/Phnom_Penh Asia/Pontianak
    Asia/Pyongyang Asia/Qatar Asia/Qostanay Asia/Qyzylorda Asia/Rangoon Asia/Riyadh Asia/Saigon Asia/Sakhalin
    Asia/Samarkand Asia/Seoul Asia/Shanghai Asia/Singapore Asia/Srednekolymsk Asia/Taipei Asia/Tashkent Asia/Tbilisi
    Asia/Tehran Asia/Tel_Aviv Asia/Thimbu Asia/Thimphu Asia/Tokyo Asia/Tomsk Asia/Ujung_Pandang Asia/Ulaanbaatar
    Asia/Ulan_Bator Asia/Urumqi Asia/Ust-Nera Asia/Vientiane Asia/Vladivostok Asia/Yakutsk Asia/Yangon
    Asia/Yekaterinburg Asia/Yerevan Atlantic/Azores Atlantic/Bermuda Atlantic/Canary Atlantic/Cape_Verde
    Atlantic/Faeroe Atlantic/Faroe Atlantic/Jan_Mayen Atlantic/Madeira Atlantic/Reykjavik Atlantic/South_Georgia
    Atlantic/St_Helena Atlantic/Stanley Australia/ACT Australia/Adelaide Australia/Brisbane Australia/Broken_Hill
    Australia/Canberra Australia/Currie Australia/Darwin Australia/Eucla Australia/Hobart Australia/LHI
    Australia/Lindeman Australia/Lord_Howe Australia/Melbourne Australia/NSW Australia/North Australia/Perth
    Australia/Queensland Australia/South Australia/Sydney Australia/Tasmania Australia/Victoria Australia/West
    Australia/Yancowinna Brazil/Acre Brazil/DeNoronha Brazil/East Brazil/West CET CST6CDT Canada/Atlantic
    Canada/Central Canada/Eastern Canada/Mountain Canada/Newfoundland Canada/Pacific Canada/Saskatchewan Canada/Yukon
    Chile/Continental Chile/EasterIsland Cuba EET EST EST5EDT Egypt Eire Etc/GMT Etc/GMT+0 Etc/GMT+1 Etc/GMT+10
    Etc/GMT+11 Etc/GMT+12 Etc/GMT+2 Etc/GMT+3 Etc/GMT+4 Etc/GMT+5 Etc/GMT+6 Etc/GMT+7 Etc/GMT+8 Etc/GMT+9 Etc/GMT-0
    Etc/GMT-1 Etc/GMT-10 Etc/GMT-11 Etc/GMT-12 Etc/GMT-13 Etc/GMT-14 Etc/GMT-2 Etc/GMT-3 Etc/GMT-4 Etc/GMT-5 Etc/GMT-6
    Etc/GMT-7 Etc/GMT-8 Etc/GMT-9 Etc/GMT0 Etc/Greenwich Etc/UCT Etc/UTC Etc/Universal Etc/Zulu Europe/Amsterdam
    Europe/Andorra Europe/Astrakhan Europe/Athens Europe/Belfast Europe/Belgrade Europe/Berlin Europe/Bratislava
    Europe/Brussels Europe/Bucharest Europe/Budapest Europe/Busingen Europe/Chisinau Europe/Copenhagen Europe/Dublin
    Europe/Gibraltar Europe/Guernsey Europe/Helsinki Europe/Isle_of_Man Europe/Istanbul Europe/Jersey
    Europe/Kaliningrad Europe/Kiev Europe/Kirov Europe/Kyiv Europe/Lisbon Europe/Ljubljana Europe/London
    Europe/Luxembourg Europe/Madrid Europe/Malta Europe/Mariehamn Europe/Minsk Europe/Monaco Europe/Moscow
    Europe/Nicosia Europe/Oslo Europe/Paris Europe/Podgorica Europe/Prague Europe/Riga Europe/Rome Europe/Samara
    Europe/San_Marino Europe/Sarajevo Europe/Saratov Europe/Simferopol Europe/Skopje Europe/Sofia Europe/Stockholm
    Europe/Tallinn Europe/Tirane Europe/Tiraspol Europe/Ulyanovsk Europe/Uzhgorod Europe/Vaduz Europe/Vatican
    Europe/Vienna Europe/Vilnius Europe/Volgograd Europe/Warsaw Europe/Zagreb Europe/Zaporozhye Europe/Zurich GB
    GB-Eire GMT GMT+0 GMT-0 GMT0 Greenwich HST Hongkong Iceland Indian/Antananarivo Indian/Chagos Indian/Christmas
    Indian/Cocos Indian/Comoro Indian/Kerguelen Indian/Mahe Indian/Maldives Indian/Mauritius Indian/Mayotte
    Indian/Reunion Iran Israel Jamaica Japan Kwajalein Libya MET MST MST7MDT Mexico/BajaNorte Mexico/BajaSur
    Mexico/General NZ NZ-CHAT Navajo PRC PST8PDT Pacific/Apia Pacific/Auckland Pacific/Bougainville Pacific/Chatham
    Pacific/Chuuk Pacific/Easter Pacific/Efate Pacific/Enderbury Pacific/Fakaofo Pacific/Fiji Pacific/Funafuti
    Pacific/Galapagos Pacific/Gambier Pacific/Guadalcanal Pacific/Guam Pacific/Honolulu Pacific/Johnston
    Pacific/Kanton Pacific/Kiritimati Pacific/Kosrae Pacific/Kwajalein Pacific/Majuro Pacific/Marquesas Pacific/Midway
    Pacific/Nauru Pacific/Niue Pacific/Norfolk Pacific/Noumea Pacific/Pago_Pago Pacific/Palau Pacific/Pitcairn
    Pacific/Pohnpei Pacific/Ponape Pacific/Port_Moresby Pacific/Rarotonga Pacific/Saipan Pacific/Samoa Pacific/Tahiti
    Pacific/Tarawa Pacific/Tongatapu Pacific/Truk Pacific/Wake Pacific/Wallis Pacific/Yap Poland Portugal ROC ROK
    Singapore Turkey UCT US/Alaska US/Aleutian US/Arizona US/Central US/East-Indiana US/Eastern US/Hawaii
    US/Indiana-Starke US/Michigan US/Mountain US/Pacific US/Samoa UTC Universal W-SU WET Zulu
"""
TIME_ZONES: Final = frozenset(_TIME_ZONE_NAMES.split())


_TEMPLATE_LABELS: Final = "spec.template.metadata.labels"
_NON_NEGATIVE_FIELDS: Final = ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
#: The mutable fields of a StatefulSet, in the order in which Kubernetes names them.
_MUTABLE_FIELDS: Final = (
    *("replicas", "ordinals", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy"),
    "minReadySeconds",
)
_CRON_JOB_NAME_LENGTH_MAX: Final = 52
_TIME_ZONE_PREFIX: Final = re.compile(r"^(?:CRON_)?TZ=[^ ]* *")
#: The maximum length of an unknown time zone in a message.
_ZONE_SHOWN_LENGTH_MAX: Final = 200
_CONCURRENCY_POLICIES: Final = ("Allow", "Forbid", "Replace")


def workload_controller_errors(obj: Obj) -> Iterator[FieldError]:
    """Validate a Deployment, ReplicaSet, StatefulSet or DaemonSet: its numbers, selector and pod template."""
    yield from rules.metadata_errors(obj)
    spec = obj["spec"]
    for field in _NON_NEGATIVE_FIELDS:
        if (spec.get(field) or 0) < 0:
            yield rules.invalid(f"spec.{field}", spec[field], rules.NEGATIVE_MESSAGE, "use 0 or more")
    template = spec.get("template") or {}
    yield from _selector_errors(spec.get("selector"), (template.get("metadata") or {}).get("labels") or {}, obj["kind"])
    claim_names = [(claim.get("metadata") or {}).get("name") or "" for claim in spec.get("volumeClaimTemplates") or ()]
    yield from pods.pod_template_errors(template, "spec.template", claim_names)
    restart_policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if restart_policy != "Always":
        problem = f'Unsupported value: "{restart_policy}": supported values: "Always"'
        yield FieldError("spec.template.spec.restartPolicy", problem, "remove restartPolicy, or use a Job")


def workload_controller_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a Deployment, ReplicaSet or DaemonSet: the selector is immutable."""
    yield from workload_controller_errors(new)
    selector = new["spec"].get("selector")
    if not semantic_equality(group_kind(new)).is_same("LabelSelector", selector, old["spec"].get("selector")):
        yield rules.immutable("spec.selector", selector)


def stateful_set_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a StatefulSet: the fields of its spec are immutable, except `_MUTABLE_FIELDS`."""
    yield from workload_controller_errors(new)
    spec, old_spec = new["spec"], old["spec"]
    immutable_fields = [field for field in dict.fromkeys((*spec, *old_spec)) if field not in _MUTABLE_FIELDS]
    field_equality = semantic_equality(scheme.STATEFUL_SET)
    if not all(field_equality.is_same_field("StatefulSetSpec", field, spec, old_spec) for field in immutable_fields):
        names = ", ".join(f"'{name}'" for name in _MUTABLE_FIELDS[:-1])
        message = f"updates to statefulset spec for fields other than {names} and '{_MUTABLE_FIELDS[-1]}' are forbidden"
        yield rules.forbidden("spec", message, "create another StatefulSet")


def cron_job_errors(obj: Obj) -> Iterator[FieldError]:
    """Validate a CronJob: its name, schedule, time zone, concurrency, deadline, history limits and Job template."""
    yield from rules.metadata_errors(obj)
    name, spec = obj["metadata"].get("name", ""), obj["spec"]
    if len(name) > _CRON_JOB_NAME_LENGTH_MAX:
        message = f"must be no more than {_CRON_JOB_NAME_LENGTH_MAX} characters"
        yield rules.invalid("metadata.name", name, message, "shorten the name: the names of its Jobs start with it")
    yield from _schedule_errors(spec["schedule"])
    yield from _time_zone_errors(spec.get("timeZone"))
    concurrency_policy = spec.get("concurrencyPolicy", "Allow")
    if concurrency_policy not in _CONCURRENCY_POLICIES:
        supported_policies = ", ".join(f'"{each}"' for each in _CONCURRENCY_POLICIES)
        problem = f'Unsupported value: "{concurrency_policy}": supported values: {supported_policies}'
        yield FieldError("spec.concurrencyPolicy", problem, f"use one of {supported_policies}")
    for field in ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        if (spec.get(field) or 0) < 0:
            yield rules.invalid(f"spec.{field}", spec[field], rules.NEGATIVE_MESSAGE, "use 0 or more")
    yield from job.spec_errors((spec.get("jobTemplate") or {}).get("spec") or {}, "spec.jobTemplate.spec")


def _selector_errors(selector: Mapping[str, Any] | None, labels: Mapping[str, str], kind: str) -> Iterator[FieldError]:
    if selector is None:
        return  # the schema reports it as required
    errors = list(rules.selector_errors(selector, "spec.selector"))
    yield from errors
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        message = f"empty selector is invalid for {kind.lower()}"
        yield rules.invalid("spec.selector", selector, message, "add matchLabels with the labels of the pod template")
    label_selector = None if errors else parse_selector(selector)
    if label_selector is not None and not label_selector.matches(labels):
        message = "`selector` does not match template `labels`"
        yield rules.invalid(_TEMPLATE_LABELS, labels, message, "add the labels of the selector to the pod template")


def _schedule_errors(schedule: str) -> Iterator[FieldError]:
    remedy = "write five fields (minute, hour, day of the month, month, day of the week), such as 0 3 * * 1"
    if not schedule:
        yield rules.required("spec.schedule", "", remedy)
        return
    if len(schedule.encode()) > SCHEDULE_LENGTH_MAX:
        yield rules.too_long("spec.schedule", SCHEDULE_LENGTH_MAX, remedy)
        return
    has_time_zone = "TZ" in schedule
    try:
        parse_schedule_fields(_TIME_ZONE_PREFIX.sub("", schedule) if has_time_zone else schedule)
    except ScheduleError as error:
        yield rules.invalid("spec.schedule", schedule, str(error), remedy)
    if has_time_zone:
        message = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        yield rules.invalid("spec.schedule", schedule, message, "remove the prefix, and set spec.timeZone")


def _time_zone_errors(time_zone: str | None) -> Iterator[FieldError]:
    path, remedy = "spec.timeZone", "use a name in the IANA time zone database, such as Europe/Berlin"
    if time_zone is None:
        return
    if not time_zone:
        yield rules.invalid(path, time_zone, "timeZone must be nil or non-empty string", remedy)
    elif time_zone.lower() == "local":
        message = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        yield rules.invalid(path, time_zone, message, remedy)
    elif time_zone not in TIME_ZONES:
        yield rules.invalid(path, time_zone, f"unknown time zone {time_zone[:_ZONE_SHOWN_LENGTH_MAX]}", remedy)


# Validation of HorizontalPodAutoscalers. Source: Kubernetes's pkg/apis/autoscaling/validation.


_METRIC_FIELDS: Final[Mapping[str, str]] = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}
#: The order in which Kubernetes reads the sources of a metric.
_SOURCE_FIELDS: Final = ("object", "external", "pods", "resource", "containerResource")
_TARGET_TYPES: Final = ("Utilization", "Value", "AverageValue")
_POSITIVE_REMEDY: Final = "use 1 or more"
#: The maximum number of metrics, of which each is computed every 15 seconds; Kubernetes has no maximum.
_METRICS_MAX: Final = 100
_STABILIZATION_SECONDS_MAX: Final = 3600
_PERIOD_SECONDS_MAX: Final = 1800


def autoscaler_errors(obj: Obj) -> Iterator[FieldError]:
    """Validate a HorizontalPodAutoscaler: its bounds, target, metrics and scaling rules."""
    yield from rules.metadata_errors(obj)
    yield from _autoscaler_spec_errors(obj.get("spec") or {}, None)


def autoscaler_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a HorizontalPodAutoscaler; an invalid apiVersion of an unchanged target stays valid."""
    yield from rules.metadata_errors(new)
    yield from _autoscaler_spec_errors(new.get("spec") or {}, old.get("spec") or {})


def _autoscaler_spec_errors(spec: Mapping[str, Any], old_spec: Mapping[str, Any] | None) -> Iterator[FieldError]:
    minimum, maximum = spec.get("minReplicas"), spec.get("maxReplicas") or 0
    if minimum is not None and minimum < (0 if (old_spec or {}).get("minReplicas") == 0 else 1):
        yield rules.invalid("spec.minReplicas", minimum, "must be greater than or equal to 1", _POSITIVE_REMEDY)
    if maximum == 0:
        yield rules.required("spec.maxReplicas", "must be set and greater than 0", _POSITIVE_REMEDY)
    elif maximum < 0:
        yield rules.invalid("spec.maxReplicas", maximum, "must be greater than or equal to 1", _POSITIVE_REMEDY)
    if minimum is not None and maximum < minimum:
        message = "must be greater than or equal to `minReplicas`"
        yield rules.invalid("spec.maxReplicas", maximum, message, "increase maxReplicas, or reduce minReplicas")
    reference, old_reference = spec.get("scaleTargetRef") or {}, (old_spec or {}).get("scaleTargetRef") or {}
    is_unchanged = all(reference.get(name) == old_reference.get(name) for name in ("apiVersion", "kind"))
    yield from _reference_errors(reference, "spec.scaleTargetRef")
    if old_spec is None or not is_unchanged:
        needs_group = reference.get("kind") != "ReplicationController"
        yield from _group_version_errors(reference, "spec.scaleTargetRef", needs_group=needs_group)
    metrics = spec.get("metrics") or ()
    if len(metrics) > _METRICS_MAX:
        yield rules.too_many_items_error("spec.metrics", len(metrics), _METRICS_MAX, "remove metrics")
        return
    for index, metric in enumerate(metrics):
        yield from _metric_errors(metric, f"spec.metrics[{index}]")
    if minimum == 0 and not any(metric.get("type") in {"Object", "External"} for metric in metrics):
        message = "must specify at least one Object or External metric to support scaling to zero replicas"
        yield rules.forbidden("spec.metrics", message, "add such a metric, or set minReplicas to 1")
    for direction in ("scaleUp", "scaleDown"):
        scaling_rules = (spec.get("behavior") or {}).get(direction)
        if scaling_rules is not None:
            yield from _scaling_rules_errors(scaling_rules, f"spec.behavior.{direction}")


def _reference_errors(reference: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("kind", "name"):
        value = reference.get(field) or ""
        if not value:
            yield rules.required(f"{path}.{field}", "", f"set the {field} of the object")
        for message in rules.path_segment_errors(value):
            yield rules.invalid(f"{path}.{field}", value, message, f"use the {field} of an object")


def _group_version_errors(reference: Mapping[str, Any], path: str, *, needs_group: bool) -> Iterator[FieldError]:
    api_version = reference.get("apiVersion") or ""
    path, remedy = f"{path}.apiVersion", "use a group and a version, such as apps/v1"
    if api_version.count("/") > 1:
        message = f"unexpected GroupVersion string: {api_version}"
        yield rules.invalid(path, api_version, message, remedy)
    elif needs_group and not api_version.rpartition("/")[0]:
        yield rules.invalid(path, api_version, "apiVersion must specify API group", remedy)


def _metric_errors(metric: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    metric_type = metric.get("type") or ""
    expected_field = _METRIC_FIELDS.get(metric_type, "")
    if not metric_type:
        yield rules.required(f"{path}.type", "must specify a metric source type", "set the type of the metric")
    if not expected_field:
        yield rules.unsupported(f"{path}.type", metric_type, sorted(_METRIC_FIELDS))
    fields = [field for field in _SOURCE_FIELDS if metric.get(field) is not None]
    for field in fields[:1]:
        yield from _metric_source_errors(field, metric[field], f"{path}.{field}")
    if not expected_field:
        yield rules.unsupported(f"{path}.type", metric_type, sorted(_METRIC_FIELDS))
    elif expected_field not in fields:
        message = "must populate information for the given metric source"
        yield rules.required(f"{path}.{expected_field}", message, "describe the metric in this field")
    if len(fields) != 1:
        for field in fields:
            if field != expected_field:
                message = "must populate the given metric source only"
                yield rules.forbidden(f"{path}.{field}", message, "remove the field, or change the type")


def _metric_source_errors(field: str, source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    target = source.get("target") or {}
    if field in {"resource", "containerResource"}:
        yield from _resource_source_errors(field, source, path)
        return
    if field == "object":
        yield from _reference_errors(source.get("describedObject") or {}, f"{path}.describedObject")
        yield from _group_version_errors(
            source.get("describedObject") or {}, f"{path}.describedObject", needs_group=False
        )
    name = (source.get("metric") or {}).get("name") or ""
    if not name:
        yield rules.required(f"{path}.metric.name", "must specify a metric name", "set the name of the metric")
    for message in rules.path_segment_errors(name):
        yield rules.invalid(f"{path}.metric.name", name, message, "use the name of a metric")
    yield from _metric_target_errors(target, f"{path}.target")
    value, average_value = target.get("value"), target.get("averageValue")
    message = {
        "object": "must set either a target value or averageValue",
        "external": "must set either a target value for metric or a per-pod target",
        "pods": "must specify a positive target averageValue",
    }[field]
    if average_value is None and (value is None or field == "pods"):
        yield rules.required(f"{path}.target.averageValue", message, "set a target")
    if field == "external" and value is not None and average_value is not None:
        message = "may not set both a target value for metric and a per-pod target"
        yield rules.forbidden(f"{path}.target.value", message, "remove one of them")


def _resource_source_errors(field: str, source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    name, target = source.get("name") or "", source.get("target") or {}
    if not name:
        yield rules.required(f"{path}.name", "must specify a resource name", "use cpu or memory")
    elif field == "containerResource":
        yield from rules.resource_name_errors(name, f"{path}.name")
    if field == "containerResource":
        container = source.get("container") or ""
        if not container:
            yield rules.required(f"{path}.container", "must specify a container", "set the name of a container")
        for message in rules.dns_label_errors(container) if container else ():
            yield rules.invalid(f"{path}.container", container, message, "use the name of a container")
    yield from _metric_target_errors(target, f"{path}.target")
    utilization, average_value = target.get("averageUtilization"), target.get("averageValue")
    if utilization is None and average_value is None:
        message = "must set either a target raw value or a target utilization"
        yield rules.required(f"{path}.target.averageUtilization", message, "set a target")
    if utilization is not None and average_value is not None:
        message = "may not set both a target raw value and a target utilization"
        yield rules.forbidden(f"{path}.target.averageValue", message, "remove one of them")


def _metric_target_errors(target: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    target_type = target.get("type") or ""
    remedy = f"use one of {', '.join(_TARGET_TYPES)}"
    if not target_type:
        yield rules.required(f"{path}.type", "must specify a metric target type", remedy)
    if target_type not in _TARGET_TYPES:
        yield rules.invalid(f"{path}.type", target_type, "must be either Utilization, Value, or AverageValue", remedy)
    for field in ("value", "averageValue"):
        value = target.get(field)
        nano = None if value is None else rules.parse_nano_amount(value)
        if value is not None and (nano is None or nano <= 0):
            yield rules.invalid(
                f"{path}.{field}", rules.canonical_quantity_or_text(value), "must be positive", "use more"
            )
    utilization = target.get("averageUtilization")
    if utilization is not None and utilization < 1:
        yield rules.invalid(f"{path}.averageUtilization", utilization, "must be greater than 0", _POSITIVE_REMEDY)


def _scaling_rules_errors(scaling_rules: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    window, window_path = scaling_rules.get("stabilizationWindowSeconds"), f"{path}.stabilizationWindowSeconds"
    if window is not None and window < 0:
        yield rules.invalid(window_path, window, "must be greater than or equal to zero", "use 0 or more")
    if window is not None and window > _STABILIZATION_SECONDS_MAX:
        message = f"must be less than or equal to {_STABILIZATION_SECONDS_MAX}"
        yield rules.invalid(window_path, window, message, f"use at most {_STABILIZATION_SECONDS_MAX}")
    select_policy = scaling_rules.get("selectPolicy")
    if select_policy is not None and select_policy not in {"Max", "Min", "Disabled"}:
        yield rules.unsupported(f"{path}.selectPolicy", select_policy, ("Disabled", "Max", "Min"))
    if not scaling_rules.get("policies"):
        yield rules.required(f"{path}.policies", "must specify at least one Policy", "add a policy, or remove the list")
    for index, policy in enumerate(scaling_rules.get("policies") or ()):
        yield from _scaling_policy_errors(policy, f"{path}.policies[{index}]")
    if scaling_rules.get("tolerance") is not None:
        yield from rules.amount_errors(scaling_rules["tolerance"], f"{path}.tolerance")


def _scaling_policy_errors(policy: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if policy.get("type") not in {"Pods", "Percent"}:
        yield rules.unsupported(f"{path}.type", policy.get("type") or "", ("Percent", "Pods"))
    for field in ("value", "periodSeconds"):
        value = policy.get(field) or 0
        if value <= 0:
            yield rules.invalid(f"{path}.{field}", value, "must be greater than zero", _POSITIVE_REMEDY)
    period = policy.get("periodSeconds") or 0
    if period > _PERIOD_SECONDS_MAX:
        message = f"must be less than or equal to {_PERIOD_SECONDS_MAX}"
        yield rules.invalid(f"{path}.periodSeconds", period, message, f"use at most {_PERIOD_SECONDS_MAX}")
