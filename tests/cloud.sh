#!/bin/sh
# Stands in for terraform, gcloud, kubectl, podman and gke-gcloud-auth-plugin, by the name it is called by. What was made is kept
# in a folder; so is every call, in order, and every effect. A file `fault` there says what goes wrong at which call.
S=@STATE@
name=${0##*/}
read -r n <"$S/count"
n=$((n + 1))
echo $n >"$S/count"
echo "$name $*" >>"$S/calls"
fault=
if [ -f "$S/fault" ]; then
  read -r at how <"$S/fault"
  [ "$at" = "$n" ] && fault=$how
fi
[ "$fault" = kill ] && kill -9 $PPID && exit 137
[ "$fault" = orphan ] && kill -9 $PPID
[ "$fault" = hang ] && read -r word <"$S/gate"

# What is done to the world, once for each time that it is done.
effect() { echo "$*" >>"$S/effects"; }
refuse() { echo "ERROR: $*" >&2; exit "${code:-1}"; }
fails_here() {
  echo $n >>"$S/failable"
  [ "$fault" = fail ] && refuse "planted"
  return 0
}

gcloud_() {
  case "$*" in
  version*) echo '{"Google Cloud SDK": "528.0.0"}' ;;
  "auth list"*) echo someone@example.com ;;
  "auth application-default"*) echo SECRET ;;
  "projects describe"*) echo '{"lifecycleState": "ACTIVE"}' ;;
  "billing projects describe"*) echo '{"billingEnabled": true}' ;;
  "services list"*) cat "$S/apis" ;;
  "services enable"*)
    fails_here
    shift 2
    for api in "$@"; do case $api in -*) ;; *) grep -qx "$api" "$S/apis" || { echo "$api" >>"$S/apis"; effect "api $api"; } ;; esac; done
    ;;
  "storage buckets describe"*)
    [ -f "$S/bucket" ] || refuse "gs://... not found: 404"
    versions=false
    [ -f "$S/versions" ] && versions=true
    case "$*" in *json*) echo "{\"uniform_bucket_level_access\": true, \"versioning_enabled\": $versions}" ;; *) echo the-bucket ;; esac
    ;;
  "storage buckets create"*)
    [ -f "$S/bucket" ] && refuse "409: you already own this bucket"
    fails_here
    : >"$S/bucket"
    effect "bucket"
    ;;
  "storage buckets update"*) [ -f "$S/bucket" ] || refuse 404; fails_here; : >"$S/versions"; effect "versions" ;;
  "container clusters list"*) if [ -f "$S/made.cluster" ]; then echo the-cluster; fi ;;
  "container clusters get-credentials"*)
    [ -f "$S/made.cluster" ] || refuse "cluster not found"
    fails_here
    echo credentials >"$KUBECONFIG"
    ;;
  "artifacts docker images describe"*)
    [ -f "$S/image.${5##*/}" ] || refuse "Image not found"
    echo sha256:0
    ;;
  "auth configure-docker"*) : >"$S/registry" ;;
  "compute disks list"*) echo "pvc-1	us-central1-a" ;;
  "compute reservations list"*) ;;
  "artifacts repositories list"*) ;;
  *) refuse "gcloud knows no: $*" ;;
  esac
}

terraform_() {
  case "$1" in -chdir=*) cd "${1#-chdir=}" || exit 1; shift ;; esac
  word=$1
  [ "$word" = version ] || [ "$word" = init ] || [ -d .terraform ] || refuse "Backend initialization required"
  case "$*" in
  version*) echo '{"terraform_version": "1.11.4"}' ;;
  init*) [ -f "$S/bucket" ] || refuse "the bucket of the state is not there"; fails_here; [ -d .terraform ] || mkdir .terraform ;;
  *-destroy*) [ -f "$S/made.cluster" ] && [ -f "$S/protected" ] && refuse "protected"; echo destroy >destroy.tfplan ;;
  plan*)
    made=0
    for file in "$S"/made.*; do [ -f "$file" ] && made=$((made + 1)); done
    [ "$made" = 3 ] && echo "No changes." && exit 0
    echo create >create.tfplan
    echo "Plan: $((3 - made)) to add, 0 to change, 0 to destroy."
    exit 2
    ;;
  *create.tfplan)
    [ -f create.tfplan ] || refuse "no plan"
    rm create.tfplan
    for part in network cluster pools; do
      [ $part = cluster ] && fails_here
      [ -f "$S/made.$part" ] || { : >"$S/made.$part"; effect "made $part"; }
    done
    : >"$S/protected"
    ;;
  *deletion_protection=false*) fails_here; rm -f "$S/protected" ;;
  *destroy.tfplan)
    [ -f "$S/protected" ] && [ -f "$S/made.cluster" ] && refuse "protected"
    for part in pools cluster network; do
      [ $part = cluster ] && fails_here
      [ -f "$S/made.$part" ] && { rm "$S/made.$part"; effect "unmade $part"; }
      [ $part = cluster ] && rm -f "$S"/applied.* "$S/jobs"
      [ $part = network ] && rm -f "$S"/image.*
    done
    ;;
  show*)
    on=false
    [ -f "$S/protected" ] && [ -f "$S/made.cluster" ] && on=true
    echo "{\"values\":{\"root_module\":{\"child_modules\":[{\"resources\":[{\"address\":\"module.cluster.it\",\"values\":{\"deletion_protection\":$on}}]}]}}}"
    ;;
  "state list"*) for file in "$S"/made.*; do [ -f "$file" ] && echo "${file##*/made.}"; done ;;
  *) refuse "terraform knows no: $*" ;;
  esac
  return 0
}

# One object a name, each Active and Available and Established.
objects() {
  printf '{"items":['
  comma=
  for each in "$@"; do
    where=
    case $each in */*) where="\"namespace\":\"${each%%/*}\"," ;; esac
    stopped=
    [ -f "$S/stopped" ] && stopped='"annotations":{"platform.batchyard.dev/stopped-by":"destroy"},'
    policy=None
    [ -f "$S/stopped" ] && policy=HoldAndDrain
    printf '%s{"apiVersion":"v1","kind":"One","metadata":{%s%s"name":"%s"},' "$comma" "$where" "$stopped" "${each##*/}"
    printf '"spec":{"stopPolicy":"%s"},' "$policy"
    printf '"status":{"conditions":['
    printf '{"type":"Active","status":"True"},{"type":"Available","status":"True"},{"type":"Established","status":"True"}]}}'
    comma=,
  done
  printf ']}\n'
}

kubectl_() {
  where=
  file=
  names=
  for each in "$@"; do
    case $each in
    --namespace=*) where=${each#*=}/ ;;
    --filename=* | --kustomize=*) file=${each#*=} ;;
    --*) ;;
    *) names="$names $each" ;;
    esac
  done
  set -- $names "|" "$@"
  case "$*" in
  version*) echo '{"clientVersion": {"gitVersion": "v1.32.4"}}'; return ;;
  esac
  case "$*" in *--kubeconfig=*) ;; *) refuse "whose cluster?" ;; esac
  [ -f .batchyard/kubeconfig ] && [ -f "$S/made.cluster" ] || refuse "connection to the server refused"
  key=$S/applied.${file##*/}
  verb=$1
  kind=$2
  case "$*" in
  "get | "*readyz*) echo ok ;;
  *--dry-run=server*) cat >/dev/null ;;
  "diff |"*) [ -f "$key" ] && cat_all "$file" | cmp -s - "$key" || { echo "diff -u a b"; exit 1; } ;;
  "apply |"*) fails_here; cat_all "$file" >"$key"; effect "applied $file" ;;
  "delete | "*) fails_here; rm -f "$key"; effect "deleted $file" ;;
  "get | "*--filename* | "get | "*--kustomize*) if [ -f "$key" ]; then echo something; fi ;;
  "patch "*HoldAndDrain*) fails_here; : >"$S/stopped"; effect "stopped" ;;
  "patch |"*) grep -q '"name": "cq-' || refuse "no objects passed to patch"; fails_here; rm -f "$S/stopped"; effect "resumed" ;;
  "delete "*) fails_here; rm -f "$S/jobs.$where"; effect "emptied $where $kind" ;;
  "get nodes"*) ;;
  "get namespaces"*) echo '{"items":[]}' ;;
  "get workloads"* | "get "*selector=app*) ;;
  "get localqueues"*) objects team-a/lq-team-a-lp team-a/lq-team-a-hp ;;
  "get customresourcedefinitions"* | "get deployment"* | "get clusterqueues"*)
    shift 2
    found=
    for each in "$@"; do [ "$each" = "|" ] && break; found="$found $where$each"; done
    objects $found
    ;;
  "get "*output=name*) if [ -f "$S/jobs" ] && ! grep -q "emptied $where $kind" "$S/effects"; then echo "$kind/one"; fi ;;
  *) refuse "kubectl knows no: $*" ;;
  esac
}

# An image is in its repository once it is pushed, which takes an image that was built or tagged here, and credentials.
podman_() {
  for last in "$@"; do :; done
  case "$1" in
  build)
    [ -f "$last/deploy/image/Containerfile" ] || refuse "no Containerfile in $last"
    fails_here
    for each in "$@"; do [ "${before:-}" = --tag ] && : >"$S/built.${each##*/}"; before=$each; done
    ;;
  pull) fails_here ;;
  tag) : >"$S/built.${last##*/}" ;;
  push)
    [ -f "$S/made.network" ] || refuse "the repository is not there"
    [ -f "$S/registry" ] || refuse "denied: unauthenticated"
    [ -f "$S/built.${last##*/}" ] || refuse "no such image: $last"
    fails_here
    [ -f "$S/image.${last##*/}" ] || { : >"$S/image.${last##*/}"; effect "pushed $last"; }
    ;;
  *) refuse "podman knows no: $*" ;;
  esac
}

cat_all() { if [ -d "$1" ]; then cat "$1"/*; else cat "$1"; fi; }

case $name in
gcloud) gcloud_ "$@" ;;
terraform) terraform_ "$@" ;;
kubectl) kubectl_ "$@" ;;
gke-gcloud-auth-plugin) echo v1 ;;
podman) podman_ "$@" ;;
esac
